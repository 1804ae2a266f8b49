"""Finite width against the Gaussian process limit in a store: how much is gained, with what error.

    python -m benchmarks.reproduction one-shot-images.zarr …

For every test set and width, at the temperature that was chosen by validation examples (where the
study has none, by the log evidence), the accuracy and what it gains over the limit. Both classify
the same test examples, so the error of the gain is that of a paired difference, over all examples
of all seeds.
"""

import argparse

import numpy as np
import xarray as xr
from rich.console import Console
from rich.table import Table

from pathkernel_datasets.selection import number
from pathkernel_datasets.store import open_store


def gains(study: xr.Dataset, choice: str) -> xr.Dataset:
    """Accuracy, gain over the limit and its standard error, dims (test_set, width)."""
    labels = study["test_label"]
    known = labels.notnull()

    def right(mean: xr.DataArray, chosen: xr.DataArray) -> xr.DataArray:
        """Whether an example is classified correctly, NaN where there is none."""
        at = mean.sel(temperature=chosen, method="nearest", tolerance=1e-9)
        return (np.sign(at) == labels).where(known)

    widths = [
        right(
            study["predictor_mean"].sel(width=width),
            study["chosen_temperature"].sel(choice=choice, width=width),
        )
        for width in study["width"].values
    ]
    finite = xr.concat(widths, study["width"].variable, coords="minimal", compat="override")
    limit = right(study["predictor_mean_gp"], study["chosen_temperature_gp"].sel(choice=choice))
    over, gain = ("seed", "example"), finite - limit
    return xr.Dataset(
        {
            "accuracy": finite.mean(over),
            "limit": limit.mean(over),
            "gain": gain.mean(over),
            "error": gain.std(over, ddof=1) / np.sqrt(gain.count(over)),
        }
    )


def table(study: xr.Dataset, name: str) -> Table:
    choice = "validation" if "validation" in study["choice"].values else "evidence"
    found = gains(study, choice)
    result = Table(
        title=f"{name}: {study.attrs['label']}, {study.sizes['seed']} seeds, T by {choice}"
    )
    result.add_column("N", justify="right")
    for test_set in study["test_set"].values:
        result.add_column(f"{test_set}", justify="right")
        result.add_column("gain over GP (points)", justify="right")
    for width in study["width"].values:
        cells = [number(width)]
        for test_set in study["test_set"].values:
            at = found.sel(width=width, test_set=test_set)
            cells.append(f"{float(at['accuracy']):.3f}")
            cells.append(f"{100 * float(at['gain']):+.1f} ± {100 * float(at['error']):.1f}")
        result.add_row(*cells)
    limits = (
        f"{float(found['limit'].sel(test_set=name)):.3f}" for name in study["test_set"].values
    )
    result.add_row("GP", *(cell for limit in limits for cell in (limit, "")))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stores", nargs="+", help="stores of studies at several temperatures")
    for store in parser.parse_args().stores:
        study = open_store(store)
        if "chosen_temperature" not in study:
            parser.error(f"{store} has one temperature only, so that none was chosen")
        Console(width=120).print(table(study.load(), store))


if __name__ == "__main__":
    main()
