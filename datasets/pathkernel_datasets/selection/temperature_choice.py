"""Choosing a temperature, with and without a look at the test sets.

One rule serves every table, figure and command: for each width, and for the limits likewise, the
temperature whose score, summed over the seeds, is best; ties are decided by the leave-one-out
density, then by the order of the temperatures. Seeds with fewer temperatures so far than others do
not take part, nor do temperatures that failed for more seeds than others.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xarray as xr

from pathkernel_datasets.errors import NotInStudyError
from pathkernel_datasets.variables.measures import WORDS, choices_of
from pathkernel_datasets.variables.quantities import STATUS_CODES
from pathkernel_datasets.variables.swept_option import check_single

NOT_COMPUTED = STATUS_CODES["not computed"]


def complete_seeds(dataset: xr.Dataset) -> np.ndarray:
    """Seeds of which every grid point and every limit is computed."""
    check_single(dataset)
    points = (dataset["status"] != NOT_COMPUTED).all(("temperature", "width"))
    limits = (dataset["reference_done"] != 0).all("temperature")
    return dataset["seed"].values[(points & limits).values]


def default_choice(dataset: xr.Dataset) -> str:
    """The choice that comes nearest to the best on the test sets: the first that the study has."""
    return next(name for name, choice in choices_of(dataset).items() if choice.score in dataset)


def check_choice(dataset: xr.Dataset, choice: str) -> None:
    """Check that one temperature for all test sets of a study can be chosen in this way.

    Raises
    ------
    ValueError
        If there is no such choice, or the study lacks its score.
    """
    if choice not in WORDS:
        raise ValueError(f"temperature must be a number or one of {', '.join(WORDS)}, not {choice}")
    if choice not in choices_of(dataset):
        raise NotInStudyError(
            f"there is no temperature to choose by {choice!r}: the study has probabilities, which "
            "have none; leave temperature out"
        )
    if choices_of(dataset)[choice].score not in dataset:
        listed = ", ".join(f"{value:g}" for value in dataset["temperature"].values)
        raise NotInStudyError(
            "the study has no validation scores, because its task gives no validation examples; "
            f'choose the temperature by "{default_choice(dataset)}", or name one of {listed}'
        )


def choose_temperatures(dataset: xr.Dataset, choice: str) -> xr.Dataset:
    """Temperatures that a choice takes, pooled over the seeds of a study.

    Returns
    -------
    xarray.Dataset
        Indices along ``temperature``, −1 where every one failed or none has the score (the log
        evidence below the sizes of U): ``index`` (width, test_set), ``index_gp`` (test_set,) of
        the Gaussian process limit, ``index_sub_network`` (sub_network, test_set) of those of
        sub-networks.
    """
    if choice != "test":
        check_choice(dataset, choice)
    score_name, sign = choices_of(dataset)[choice].score, choices_of(dataset)[choice].sign
    points, limits = dataset["status"] != NOT_COMPUTED, dataset["reference_done"] != 0
    indices = {}
    for suffix, computed in (("", points), ("_gp", limits), ("_sub_network", limits)):
        if score_name + suffix in dataset:
            score = sign * dataset[score_name + suffix].load()
            if choice == "paper":
                score = score.isel(test_set=0, drop=True)
            if "test_set" not in score.dims:
                score = score.expand_dims(test_set=dataset["test_set"].values)
            # where there are probabilities, there is one temperature, and no such density
            density = f"leave_one_out_log_density{suffix}"
            ties = dataset[density].load() if density in dataset else score
            indices[f"index{suffix}"] = xr.apply_ufunc(
                best,
                *xr.broadcast(score, ties, computed.load()),
                input_core_dims=[["seed", "temperature"]] * 3,
                vectorize=True,
                output_dtypes=[int],
            )
    return xr.Dataset(indices).transpose("width", "sub_network", "test_set", missing_dims="ignore")


def choose_common_temperature(datasets: Iterable[xr.Dataset], choice: str) -> float | None:
    """Return the temperature that a choice takes for all widths together, and for all datasets.

    That is the one of best score, summed over the seeds and widths that have it; the Gaussian
    process limits do not count. None if no point has the score.

    Parameters
    ----------
    datasets : iterable of xarray.Dataset
        Studies on the same temperatures, such as those of the values of an option.
    choice : str
        One of :data:`pathkernel_datasets.variables.measures.WORDS`.

    Raises
    ------
    ValueError
        If there is no such choice, or a study lacks its score.
    """
    rows: dict[str, list[np.ndarray]] = {"score": [], "ties": [], "tried": []}
    temperatures = np.empty(0)
    for dataset in datasets:
        check_choice(dataset, choice)
        temperatures, of_choice = dataset["temperature"].values, choices_of(dataset)[choice]
        score = of_choice.sign * dataset[of_choice.score]
        if choice == "paper":
            score = score.isel(test_set=0)
        columns = {
            "score": score,
            "ties": dataset["leave_one_out_log_density"],
            "tried": dataset["status"] != NOT_COMPUTED,
        }
        for name, values in columns.items():
            values = values.load().transpose(..., "temperature").values
            rows[name].append(values.reshape(-1, len(temperatures)))
    score, ties, tried = (np.concatenate(parts) for parts in rows.values())
    # a width at which no temperature has the score, such as an evidence, says nothing of the others
    has_score = np.isfinite(score).any(axis=1)
    if not has_score.any():
        return None
    index = best(score[has_score], ties[has_score], tried[has_score])
    return None if index < 0 else float(temperatures[index])


def best(score: np.ndarray, ties: np.ndarray, tried: np.ndarray) -> int:
    """Index of the temperature with the largest sum of a score over the seeds, −1 if none has one.

    Parameters
    ----------
    score, ties : array, shape (seed, temperature)
        NaN where it is not known. Equal sums are decided by those of ``ties``.
    tried : bool array of the same shape
        Whether the point is computed.
    """
    # sums over other seeds or temperatures than the next one's would not compare: only points that
    # all of these seeds have take part, while a run goes on
    counts = tried.sum(axis=1)
    seeds = counts == counts.max()
    common = tried[seeds].all(axis=0)
    if not common.any():  # the seeds have different temperatures: take the first
        seeds = [counts.argmax()]
        common = tried[counts.argmax()]
    scored = np.where(common, np.isfinite(score[seeds]).sum(axis=0), 0)
    if not scored.any():
        return -1
    candidates = scored == scored.max()  # one that failed for some seed is chosen only if all did
    for values in (score[seeds], ties[seeds]):
        total = np.where(np.isfinite(values), values, 0).sum(axis=0)
        total = np.where(candidates, total, -np.inf)
        candidates = total >= total.max() - 1e-12  # equal accuracies may differ by rounding
    return int(np.argmax(candidates))
