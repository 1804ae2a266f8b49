"""Accuracy by every choice of the temperature and the best possible.

``python -m benchmarks.studies.choices NAME``

Every choice is made over all seeds, for each width and for the Gaussian process limit; the best is
the temperature with the largest mean accuracy on the test set itself. Means over the seeds.
"""

from __future__ import annotations

import sys

import numpy as np
import xarray as xr

from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.selection.temperature_choice import choose_temperatures
from pathkernel_datasets.variables.measures import Measure, choices_of, measures_of

CHOSEN = ("test", "validation", "leave-one-out", "evidence")


def main() -> None:
    """Print one table per test set in Markdown, with what every choice loses on the mean."""
    dataset = open_study(sys.argv[1]).load()
    for test_set in map(str, dataset["test_set"].values):
        where = f"{dataset.attrs['label']}, {test_set}, {dataset.sizes['seed']} seeds"
        print(f"{where}: {measures_of(dataset)[0].heading} (T)")
        for row in choice_rows(dataset, test_set):
            print(f"| {' | '.join(row)} |")


def choice_rows(dataset: xr.Dataset, test_set: str) -> list[list[str]]:
    """Accuracy, or R², and temperature by every choice that a dataset allows, the heading first."""
    measure = measures_of(dataset)[0]
    choices = [name for name in CHOSEN if choices_of(dataset)[name].score in dataset]
    chosen = {
        name: _at_choice(dataset, measure, choose_temperatures(dataset, name), test_set)
        for name in choices
    }
    labels = [f"{width:g}" for width in dataset["width"].values] + ["GP limit"]
    rows = [["N", "best", *choices[1:]]]
    for row, label in enumerate(labels):
        pairs = [
            (accuracies[row], temperatures[row]) for accuracies, temperatures in chosen.values()
        ]
        cells = ("not defined" if np.isnan(a) else f"{a:.3f} ({t:g})" for a, t in pairs)
        rows.append([label, *cells])
    losses = (np.nanmean(chosen["test"][0] - chosen[name][0]) for name in choices[1:])
    return [*rows, ["mean loss", "", *(f"{100 * loss:.1f} %" for loss in losses)]]


def _at_choice(
    dataset: xr.Dataset, measure: Measure, choice: xr.Dataset, test_set: str
) -> tuple[np.ndarray, np.ndarray]:
    """Means of a measure over the seeds, and temperatures, of every width and of the limit."""
    accuracies, temperatures = [], []
    for suffix in ("", "_gp"):
        index = choice[f"index{suffix}"].sel(test_set=test_set, drop=True)
        accuracy = dataset[measure.name + suffix].sel(test_set=test_set, drop=True).mean("seed")
        accuracy = accuracy.isel(temperature=index).where(index >= 0)
        accuracies.append(np.atleast_1d(accuracy.values))
        temperatures.append(np.where(index < 0, np.nan, dataset["temperature"].values[index]))
    return np.concatenate(accuracies), np.concatenate([np.atleast_1d(t) for t in temperatures])


if __name__ == "__main__":
    main()
