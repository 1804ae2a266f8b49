"""Accuracy by every choice of the temperature beside the best there is: ``choices FILE.zarr``.

Every choice is made over all seeds, for each width and for the Gaussian process limit; the best is
the temperature with the largest mean accuracy on the test set itself. Means over the seeds. The log
evidence to next order is there once ``pathkernel correct FILE.zarr --grid --widths N,N`` was run.
"""

from __future__ import annotations

import sys

import numpy as np
import xarray as xr

from pathkernel_datasets.choice import choose
from pathkernel_datasets.choices import CHOICES
from pathkernel_datasets.stored import StoredStudy

CHOSEN = ("test", "validation", "leave-one-out", "evidence", "next-evidence")


def main() -> None:
    """Print one table per test set, and what every choice loses on the mean."""
    dataset = StoredStudy(sys.argv[1]).dataset.load()
    choices = [name for name in CHOSEN if CHOICES[name].score in dataset]
    found = {name: choose(dataset, name) for name in choices}
    names = [f"N = {width:g}" for width in dataset["width"].values] + ["GP limit"]
    seeds = dataset.sizes["seed"]
    for test_set in dataset["test_set"].values:
        print(f"{dataset.attrs['label']}, {test_set}, {seeds} seeds: accuracy (T)")
        table = {name: _taken(dataset, found[name], test_set) for name in choices}
        print(f"{'':>10}", *(f"{name:>15}" for name in choices))
        for row, label in enumerate(names):
            cells = (f"{table[name][0][row]:.3f} ({table[name][1][row]:g})" for name in choices)
            print(f"{label:>10}", *(f"{cell:>15}" for cell in cells))
        best = table["test"][0]
        losses = (np.nanmean(best - table[name][0]) for name in choices)
        print(f"{'mean loss':>10}", *(f"{100 * loss:>14.1f}%" for loss in losses), "\n")


def _taken(dataset: xr.Dataset, found: xr.Dataset, test_set: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean accuracies over the seeds and temperatures, of every width and of the limit."""
    accuracies, temperatures = [], []
    for suffix in ("", "_gp"):
        index = found[f"index{suffix}"].sel(test_set=test_set, drop=True)
        accuracy = dataset[f"accuracy{suffix}"].sel(test_set=test_set, drop=True).mean("seed")
        taken = accuracy.isel(temperature=index).where(index >= 0)
        accuracies.append(np.atleast_1d(taken.values))
        temperatures.append(np.where(index < 0, np.nan, dataset["temperature"].values[index]))
    return np.concatenate(accuracies), np.concatenate([np.atleast_1d(t) for t in temperatures])


if __name__ == "__main__":
    main()
