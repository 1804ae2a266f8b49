"""Choosing a temperature, with and without a look at the test sets.

One rule serves every table, figure and command: for each width, and for the limits likewise, the
temperature whose score, summed over the seeds, is best; equal scores are decided by the
leave-one-out density, and equal ones of those by the order of the temperatures. Seeds for which
other seeds have more temperatures so far do not take part, nor do temperatures that failed for more
seeds than others.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import xarray as xr

from pathkernel_datasets.choices import CHOICES, WORDS, choices_of
from pathkernel_datasets.errors import NotInStoreError
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.swept import check_single

NOT_COMPUTED = STATUS_CODES["not computed"]

_TIES = "leave_one_out_log_density"


def complete_seeds(dataset: xr.Dataset) -> np.ndarray:
    """Seeds of which every grid point and every limit is computed."""
    check_single(dataset)
    computed = (dataset["status"] != NOT_COMPUTED).all(("temperature", "width"))
    done = computed & (dataset["reference_done"] != 0).all("temperature")
    return dataset["seed"].values[done.values]


def default_choice(dataset: xr.Dataset) -> str:
    """The choice that comes nearest to the best on the test sets: the first that the store has."""
    return next(name for name, choice in choices_of(dataset).items() if choice.score in dataset)


def check_choice(dataset: xr.Dataset, choice: str, among: Collection[str] = WORDS) -> None:
    """Check that temperatures of a store can be chosen in this way, one of some ways.

    Raises
    ------
    ValueError
        If there is no such choice, or the store does not have what it goes by.
    """
    if choice not in among:
        raise ValueError(f"temperature must be a number or one of {', '.join(WORDS)}, not {choice}")
    if choices_of(dataset)[choice].score not in dataset:
        if choice == "next-evidence":
            raise NotInStoreError(
                "the store holds the log evidence to next order at all temperatures and seeds "
                "of no width; compute it with: pathkernel correct FILE.zarr --grid --widths N,N, "
                "and in Python take StoredStudy(path).dataset (pathkernel_datasets.stored)"
            )
        listed = ", ".join(f"{value:g}" for value in dataset["temperature"].values)
        raise NotInStoreError(
            "the store has no validation scores, because its task gives no validation examples; "
            f'choose the temperature by "{default_choice(dataset)}", or name one of {listed}'
        )


def choose(dataset: xr.Dataset, choice: str) -> xr.Dataset:
    """Temperatures that a choice takes, pooled over the seeds of a store.

    Returns
    -------
    xarray.Dataset
        Indices along ``temperature``, −1 where every one failed or none has the score (the log
        evidence below the sizes of U): ``index`` (width, test_set), ``index_gp`` (test_set,) of
        the Gaussian process limit, ``index_sub_network`` (sub_network, test_set) of those of
        sub-networks.
    """
    check_choice(dataset, choice, CHOICES)
    tried = dataset["status"] != NOT_COMPUTED
    limits = dataset["reference_done"] != 0
    found = {"index": _indices(dataset, choice, "", tried)}
    for suffix in ("_gp", "_sub_network"):
        if choices_of(dataset)[choice].score + suffix in dataset:
            found[f"index{suffix}"] = _indices(dataset, choice, suffix, limits)
    return xr.Dataset(found).transpose("width", "sub_network", "test_set", missing_dims="ignore")


def _indices(dataset: xr.Dataset, choice: str, suffix: str, tried: xr.DataArray) -> xr.DataArray:
    taken = choices_of(dataset)[choice]
    score, ties = (dataset[name + suffix].load() for name in (taken.score, _TIES))
    score = taken.sign * score
    if choice == "paper":
        score = score.isel(test_set=0, drop=True)
    if "test_set" not in score.dims:
        score = score.expand_dims(test_set=dataset["test_set"].values)
    score, ties, tried = xr.broadcast(score, ties, tried.load())
    return xr.apply_ufunc(
        best,
        score,
        ties,
        tried,
        input_core_dims=[["seed", "temperature"]] * 3,
        vectorize=True,
        output_dtypes=[int],
    )


def best(score: np.ndarray, ties: np.ndarray, tried: np.ndarray) -> int:
    """Index of the temperature with the largest sum of a score over the seeds.

    Parameters
    ----------
    score, ties : array, shape (seed, temperature)
        NaN where it is not known. Equal sums are decided by those of ``ties``.
    tried : bool array of the same shape
        Whether the point is computed.

    Returns
    -------
    int
        −1 if no temperature has a score.
    """
    seeds = tried.sum(axis=1) == tried.sum(axis=1).max()
    common = tried[seeds].all(axis=0)
    if not common.any():  # the seeds have different temperatures: go by the first
        seeds = np.arange(len(tried)) == np.argmax(seeds)
        common = tried[seeds][0]
    known = np.where(common, np.isfinite(score[seeds]).sum(axis=0), 0)
    if not known.max(initial=0):
        return -1
    left = known == known.max()  # one that failed for some seed is chosen only if all did
    for values in (score, ties):
        total = np.where(np.isfinite(values[seeds]), values[seeds], 0).sum(axis=0)
        total = np.where(left, total, -np.inf)
        left = total >= total.max() - 1e-12  # sums of equal accuracies may differ by rounding
    return int(np.argmax(left))
