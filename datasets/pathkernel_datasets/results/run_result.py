"""Computing a result of a study, part by part, and publishing it beside the study."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import xarray as xr

from pathkernel_core.contracts.failures import named_failures
from pathkernel_core.contracts.hooks import PluginError, Plugins
from pathkernel_core.contracts.result import Result
from pathkernel_core.system.progress import Progress, Report
from pathkernel_datasets.errors import StudyError, StudyWarning
from pathkernel_datasets.folder.lock import check_writable, lock_folder
from pathkernel_datasets.folder.study_folder import PIECES, STUDY, remove_empty
from pathkernel_datasets.folder.zarr_files import faults
from pathkernel_datasets.results.draws import remove_blocks
from pathkernel_datasets.results.result_files import damaged_parts, file_of, publish_parts
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.progress_bar import supervised

_log = logging.getLogger("pathkernel.result")


def run_result(
    result: Result,
    path: str | os.PathLike,
    *,
    plugins: Plugins | None = None,
    executor: Executor | None = None,
    threads: int | None = 1,
    report: Report | None = None,
) -> StoredStudy:
    """Compute a result of a study, at every value of a swept option, into the study's folder.

    Parameters
    ----------
    result : Result
    path : path
        Folder of the study.
    plugins : Plugins, optional
        Where tasks and samplers are looked up; by default those installed.
    executor, threads, report
        As for :func:`pathkernel_datasets.run.run_study.run_study`.

    Returns
    -------
    StoredStudy
        Study with its results, as views take it.

    Raises
    ------
    StudyError
        If the path is no folder of a study, or the study is damaged or incomplete, or the folder
        cannot be written, or the study has probabilities of classes or several outputs, which the
        result does not take.
    ValueError
        If an option of the result is out of range.
    PluginError
        If the result is named ``study``, or computes no labelled data.

    Examples
    --------
    >>> import pathkernel as pk
    >>> task = pk.HiddenMarkov(examples=20, test_examples=20)
    >>> study = pk.Study(task, widths=(10,), temperatures=(0.01, 0.1))
    >>> computed = pk.run_study(study, "small")
    >>> pk.run_result(pk.Phases(), "small").results
    ['phases']
    """
    study = StoredStudy(path, plugins, executor, threads)
    if result.name == "study":
        raise PluginError("the result 'study' has the name of the study itself; give it another")
    _check_likelihood(result, study)
    _check_study(study)
    _check_outputs(result, study)
    reported = False
    _log.info("%s: %s", study.path, result)

    def tell(progress: Progress) -> None:
        nonlocal reported
        reported = True
        shown(progress)

    with supervised(report, threads) as shown:
        for single in [study] if result.of_all_values else study.singles:
            file, _ = file_of(single.path, result.name)
            check_writable(single.path, file.name, PIECES)
            single.damaged = _damaged_parts(file)
            _publish(single, result.name)  # parts of a run that was killed
            try:
                for name, part in _parts(result, single, tell):
                    if not reported:  # tells callers that there was something to do
                        tell(Progress(0, None, f"writing {name or result.name}"))
                    single.write(f"{result.name}/{name}".rstrip("/"), part)
            finally:  # Ctrl-C leaves the parts so far in the folder, and the next run does the rest
                _publish(single, result.name)
    return StoredStudy(path, plugins)


def _check_likelihood(result: Result, study: StoredStudy) -> None:
    """Check that a result takes the study's likelihood."""
    likelihood = study.identity.get("likelihood", "squared")
    if likelihood != "squared" and not result.of_probabilities:
        # of classes by softmax, the study that is asked for would be refused in turn
        two = likelihood == "softmax" and not result.of_several_outputs
        raise StudyError(
            f"{result.command} needs the squared loss and its temperature, but {study.path} is a "
            f"study of the {likelihood} likelihood, which has probabilities instead; run a study "
            f"{'of two classes ' if two else ''}without --likelihood for it"
        )


def _check_outputs(result: Result, study: StoredStudy) -> None:
    """Check that a result takes the study's outputs."""
    if "output" in study.dataset.dims and not result.of_several_outputs:
        raise StudyError(
            f"{result.command} takes one output, but the study {study.path} has "
            f"{study.dataset.sizes['output']}; run a study of two classes, or of one target, for it"
        )


def _check_study(study: StoredStudy) -> None:
    """Check that a study is complete, and can be read."""
    for one in dict.fromkeys((study, *study.singles)):
        path = one.path / STUDY
        for name, fault in faults(path) if path.exists() else ():
            raise StudyError(
                f"{path / name} {fault}; run the command again that computed the study, which "
                "computes it again"
            )
    if not study.is_complete:
        raise StudyError(
            f"{study.path} is not complete: its run is in progress, or was interrupted; run the "
            "command again that computes the study, and then this one"
        )


def _damaged_parts(path: Path) -> frozenset[str]:
    """Parts of a result that cannot be read, of which a warning tells."""
    damaged = damaged_parts(path) if path.exists() else {}
    if damaged:
        fault = next(iter(damaged.values()))
        remedy = "what is damaged is computed again where it is asked for"
        warnings.warn(f"{fault}; {remedy}", StudyWarning, stacklevel=4)
    return frozenset(f"{path.stem}/{part}".rstrip("/") for part in damaged)


def _publish(study: StoredStudy, result: str) -> None:
    """Publish all computed parts of a result, and remove the blocks of draws that they hold."""
    with lock_folder(study.path, wait=True):
        new_parts = publish_parts(study.path, result)
    parts = [f"{result}/{part}".rstrip("/") for part in new_parts]
    study.damaged -= {*parts}  # they are written again
    for part in parts:
        remove_blocks(study, part)
    remove_empty(study.path / PIECES)


def _parts(result: Result, study: StoredStudy, report: Report) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield the parts of a result, with their names below its group, as they are computed."""
    failures = partial(
        named_failures,
        f"the result {result.name!r} cannot be computed",
        type(result),
        PluginError,
        may_refuse=True,
    )
    with failures():
        computed = result.compute(study, report)
    if isinstance(computed, xr.Dataset):
        yield "", computed
        return
    pairs = isinstance(computed, Iterable) and not isinstance(computed, (str, Mapping))
    parts, end = iter(computed if pairs else (computed,)), object()
    while True:
        with failures():  # the code of a generator runs here
            part = next(parts, end)
        if part is end:
            return
        if not (isinstance(part, tuple) and len(part) == 2 and isinstance(part[1], xr.Dataset)):
            raise PluginError(
                f"compute() of the result {result.name!r} gave a {type(part).__name__}; it must "
                "give an xarray.Dataset, or pairs of a group name and an xarray.Dataset"
            )
        yield part
