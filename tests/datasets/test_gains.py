"""Gains over the limit, against the accuracies of single seeds and their differences by hand."""

from __future__ import annotations

import io

import numpy as np
import pytest
import xarray as xr
from rich.console import Console
from test_choice import Validated
from test_sweep import Small

import pathkernel_core as pk
from pathkernel_datasets.gains import gains
from pathkernel_datasets.selection import Selection
from pathkernel_datasets.store import open_store
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import run_study
from pathkernel_views.tables import gain_table

pytestmark = pytest.mark.filterwarnings("error")

SEEDS, WIDTHS, TEMPERATURES = (3, 4, 7), (0.1, 2), (0.02, 0.3, 1.0)
NOISY = Validated(examples=8)  # so few that the widths do not all classify alike


class Interrupt(Exception):
    """Stands for whatever stops a run."""


def interrupted(path, points):
    """A study that was stopped after some points."""

    def report(progress):
        if progress.done >= points:
            raise Interrupt

    study = Study(NOISY, seeds=SEEDS, widths=WIDTHS, temperatures=TEMPERATURES)
    with pytest.raises(Interrupt):
        run_study(study, path, analyses=(), report=report)
    return open_store(path).load()


def store(path, task, seeds=SEEDS, **settings):
    run_study(Study(task, seeds=seeds, **settings), path, analyses=())
    return open_store(path).load()


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    return store(
        tmp_path_factory.mktemp("gains") / "study.zarr",
        NOISY,
        widths=WIDTHS,
        temperatures=TEMPERATURES,
    )


def right(mean, labels):
    """Which examples are classified correctly, one by one."""
    return np.array([pk.accuracy(mean[i : i + 1], labels[i : i + 1]) for i in range(len(labels))])


def by_hand(dataset, width, test_set, temperature):
    """Right answers (seed, example) of a width and of the limit."""
    found = []
    for seed in SEEDS:
        at = dataset.sel(seed=seed, test_set=test_set)
        labels = at["test_label"].values
        known = ~np.isnan(labels if labels.ndim == 1 else labels[:, 0])
        here, limit = temperature(seed, width, test_set)
        found.append(
            [
                right(mean.values[known], labels[known])
                for mean in (
                    at["predictor_mean"].sel(width=width, temperature=here),
                    at["predictor_mean_gp"].sel(temperature=limit),
                )
            ]
        )
    return np.array(found).swapaxes(0, 1)


def assert_by_hand(dataset, found, temperature):
    for width in dataset["width"].values:
        for test_set in dataset["test_set"].values:
            finite, limit = by_hand(dataset, width, test_set, temperature)
            at = found.sel(width=width, test_set=test_set)
            gain = finite - limit
            assert at["accuracy"] == pytest.approx(finite.mean())
            assert at["accuracy_gp"] == pytest.approx(limit.mean())
            assert at["gain"] == pytest.approx(gain.mean())
            error = np.std(gain.mean(axis=0), ddof=1) / np.sqrt(gain.shape[1])
            assert at["example_error"] == pytest.approx(error)
            error = np.std(gain.mean(axis=1), ddof=1) / np.sqrt(len(SEEDS))
            assert at["seed_error"] == pytest.approx(error)


@pytest.mark.parametrize("choice", [None, "leave-one-out", "paper"])
def test_gains_at_the_temperatures_chosen_over_all_seeds(validated, choice):
    selection = Selection(validated, choice)
    chosen = dict(zip(validated["width"].values, selection.temperatures))

    def temperature(seed, width, test_set):
        return chosen[width], selection.temperature_gp

    found = gains(validated, choice)
    assert found.attrs["seeds"] == list(SEEDS)
    assert_by_hand(validated, found, temperature)
    assert (found["gain"] != 0).any()
    np.testing.assert_array_equal(found["temperature"], selection.temperatures)
    assert found["temperature_gp"] == selection.temperature_gp


@pytest.mark.parametrize("outputs", [1, 3])
def test_gains_at_a_given_temperature(tmp_path, outputs):
    dataset = store(tmp_path / "two.zarr", Small(outputs=outputs))
    assert_by_hand(dataset, gains(dataset, 0.1), lambda *at: (0.1, 0.1))
    only = store(tmp_path / "one.zarr", Small(outputs=outputs), temperatures=(0.1,))
    assert_by_hand(only, gains(only), lambda *at: (0.1, 0.1))


def test_seeds_that_share_their_examples_do_not_lower_the_error_over_examples(validated):
    one = validated.isel(seed=[0])
    thrice = xr.concat([one.assign_coords(seed=[seed]) for seed in SEEDS], "seed")
    xr.testing.assert_allclose(gains(thrice)["example_error"], gains(one)["example_error"])


def test_a_width_at_which_a_seed_failed_has_no_gain(validated):
    failed = (validated["seed"] == 4) & (validated["width"] == 2)
    broken = validated.assign(predictor_mean=validated["predictor_mean"].where(~failed))
    found, whole = gains(broken), gains(validated)
    for name in ("accuracy", "gain", "example_error", "seed_error"):
        assert found[name].sel(width=2).isnull().all()
        xr.testing.assert_equal(found[name].sel(width=0.1), whole[name].sel(width=0.1))
    xr.testing.assert_equal(found["accuracy_gp"], whole["accuracy_gp"])


def test_one_seed_has_no_error_over_the_seeds(validated):
    found = gains(validated.isel(seed=[1]))
    assert found["seed_error"].isnull().all()
    assert found["example_error"].notnull().all()


def test_seeds_that_are_not_complete_are_left_out(tmp_path, validated):
    found = gains(interrupted(tmp_path / "study.zarr", 8))
    assert found.attrs["seeds"] == [3]
    xr.testing.assert_equal(found, gains(validated.sel(seed=[3])))


def test_nothing_complete_or_not_there_is_refused(tmp_path, validated):
    with pytest.raises(ValueError, match="no seed of the store is complete yet"):
        gains(interrupted(tmp_path / "study.zarr", 1))
    with pytest.raises(ValueError, match=r"no temperature 0.2; it has 0.02, 0.3, 1"):
        gains(validated, 0.2)
    for number, temperatures in enumerate([(0.1,), (0.1, 1.0)]):
        path = tmp_path / f"{number}.zarr"
        plain = store(path, Small(), seeds=(3,), widths=(5,), temperatures=temperatures)
        with pytest.raises(ValueError, match="no validation scores"):
            gains(plain, "validation")


def test_table(validated):
    found = gains(validated, "validation")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(gain_table(validated, "validation"))
    text = " ".join(console.export_text().split())
    point = found.sel(width=0.1, test_set="long")
    words = (
        f"{100 * float(point[name]):{form}}"
        for name, form in (("gain", "+.1f"), ("example_error", ".1f"), ("seed_error", ".1f"))
    )
    assert "{} ± {} ({})".format(*words) in text
    assert f"{float(point['accuracy_gp']):.3f}" in text
    assert "both of largest validation accuracy over the seeds" in text
    here, limit = float(found["temperature"].sel(width=0.1)), float(found["temperature_gp"])
    assert f"N = 0.1 {here:g} | {limit:g} " in text


def test_table_at_a_whole_number(validated):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(gain_table(validated, 1))
    assert "N = 0.1 1 | 1 " in " ".join(console.export_text().split())
