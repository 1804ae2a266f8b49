"""Contracts of analyses and results, for their authors: a check in a test says what to change.

import pathkernel as pk

def test_spectrum():
    pk.plugins.check_result(Spectrum())
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from rich.console import Console

from pathkernel_core.contracts.analysis import Analysis
from pathkernel_core.contracts.hooks import Plugins, load_plugins
from pathkernel_core.contracts.options import NAME_PATTERN, option
from pathkernel_core.contracts.result import Result
from pathkernel_core.contracts.task import Examples, Realisation, Task
from pathkernel_core.paths.layers import AttentionProduct
from pathkernel_core.system.progress import Progress
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.results.run_result import run_result
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study

_OF_RESULTS = frozenset(("folder", "figures", "help"))  # options that every result's command has


@dataclass(frozen=True)
class SmallTask(Task):
    """Gaussian tokens with the sign of one of them: a study of it takes a fraction of a second."""

    name: ClassVar[str] = "small-task"
    summary: ClassVar[str] = "Sign of a token among Gaussian ones"

    examples: int = option(12, "training and test examples")

    def realise(self, seed: int) -> Realisation:
        """Draw tokens and heads; half of the examples have each label."""
        generator = np.random.default_rng(seed)

        def draw() -> Examples:
            labels = np.resize([1.0, -1.0], self.examples)
            inputs = generator.standard_normal((self.examples, 3, 4))
            inputs[:, 0, 0] = labels * np.abs(inputs[:, 0, 0])
            return Examples(inputs, labels)

        return Realisation(
            layers=[AttentionProduct(generator.standard_normal((2, 4, 4))) for _ in range(2)],
            readout="last",
            train=draw(),
            test_sets={"test": draw()},
        )


SMALL_STUDY = Study(SmallTask(), widths=(10, 100), temperatures=(0.1, 1.0), seeds=(0, 1))
"""Study on which analyses and results are checked by default."""


def check_analysis(analysis: Analysis, study: Study = SMALL_STUDY) -> None:
    """Check that a study stores an analysis's variables, labelled and reproducible.

    The other variables must be those of a study without it: it changes nothing that it is given.

    Raises
    ------
    AssertionError
        At the first check that fails, saying what to change.
    """
    _check_texts(analysis.name, analysis.summary)
    assert analysis.variables, "variables must name what compute() returns"
    for variable in analysis.variables:
        assert variable.long_name.strip(), f"variable {variable.name} needs a long_name"
        assert len(set(variable.dims)) == len(variable.dims), (
            f"variable {variable.name} names a dimension twice: {variable.dims}"
        )
    with tempfile.TemporaryDirectory() as folder:
        paths = (Path(folder) / "first", Path(folder) / "second")
        first, second = (run_study(study, path, analyses=[analysis]).load() for path in paths)
        without = run_study(study, Path(folder) / "without", analyses=()).load()
    for name in without.variables:
        assert without[name].variable.equals(first[name].variable), (
            f"with the analysis the study has another {name}; compute() must not change its arrays"
        )
    names = [variable.name for variable in analysis.variables]
    if analysis.scope == "solution":
        names += [f"{name}_gp" for name in names]
    for name in names:
        assert name in first, f"the dataset lacks {name}"
        assert first[name].notnull().any(), f"{name} is NaN everywhere"
        for dim in first[name].dims:
            assert dim in first.coords, f"dimension {dim} of {name} has no labels"
        xr.testing.assert_identical(first[name], second[name])


def check_result(
    result: Result, study: Study = SMALL_STUDY, plugins: Plugins | None = None
) -> None:
    """Check that a result stores labelled data, does not change the study, and has views.

    Parameters
    ----------
    result : Result
        With options that keep the checks fast.
    study : Study
    plugins : Plugins, optional
        Where tasks and samplers are looked up; by default installed plugins and the study's task.

    Raises
    ------
    AssertionError
        At the first check that fails, saying what to change.
    """
    _check_texts(result.name, result.summary)
    assert re.fullmatch(NAME_PATTERN, result.command), (
        f"command {result.command!r} must be lower-case words joined by hyphens"
    )
    for entry in dataclasses.fields(result):
        assert entry.metadata.get("help"), f"option {entry.name} needs a help text"
        assert entry.name not in _OF_RESULTS, f"the option name {entry.name} is taken"
    plugins = load_plugins() if plugins is None else plugins
    plugins.tasks.setdefault(study.task.name, type(study.task))
    reported: list[Progress] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study"
        before = run_study(study, path, analyses=()).load()
        stored = run_result(result, path, plugins=plugins, report=reported.append)
        assert reported, "compute() must report its progress, or it seems to have done nothing"
        assert result.name in stored.results, f"the folder has no {result.name}.zarr"
        tree = stored.result(result.name).load()
        repeated = run_result(result, path, plugins=plugins).result(result.name)
        assert tree.identical(repeated.load()), "computed again, it is another"
        assert before.identical(open_study(path).load()), "it changed the study"
        _check_data(tree)
        _check_views([*result.views(stored), *result.joint_views(stored)], result.name)


def _check_data(tree: xr.DataTree) -> None:
    """Check that the groups of a result explain themselves, and that netCDF can hold them."""
    assert any(group.data_vars for group in tree.subtree), "compute() gave no variable"
    for group in tree.subtree:
        for name, variable in group.data_vars.items():
            assert variable.attrs.get("long_name"), f"variable {name} needs a long_name"
            for dim in variable.dims:
                assert not str(dim).startswith("dim_"), f"{name}: name its dimension {dim}"
        for name, value in group.attrs.items():
            assert not isinstance(value, dict), f"attribute {name}: netCDF holds no dictionary"


def _check_views(views: Iterable[Any], part: str) -> None:
    """Check that tables fit a terminal of 80 columns, and that charts can be drawn."""
    for view in views:
        if isinstance(view, str):
            assert view.strip(), "a sentence is empty"
        elif hasattr(view, "frame"):
            with (console := Console(width=80)).capture() as printed:
                console.print(view, crop=False)
            widest = max(map(len, printed.get().splitlines()))
            assert widest <= 80, f"{view.name} needs {widest} columns, a terminal has 80"
            assert json.dumps(view.as_json(part)), f"{view.name} has no JSON"
        else:
            assert hasattr(view, "specification"), f"{view} is no Table, Chart or text"
            assert view.caption.strip(), f"{view.name}: a chart needs a caption"
            view.specification(validate=True)


def _check_texts(name: str, summary: str) -> None:
    assert re.fullmatch(NAME_PATTERN, name), (
        f"name {name!r} must be lower-case words joined by hyphens"
    )
    assert summary.strip(), "summary must say in one line what it is"
    assert "\n" not in summary, "summary must be a single line"
