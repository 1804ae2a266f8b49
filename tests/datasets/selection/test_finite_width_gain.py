"""Gains over the limit, against the accuracies of single seeds and their differences by hand."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
import xarray as xr
from rich.console import Console
from small_task import Small
from test_choice import Validated

import pathkernel_core as pk
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.selection.finite_width_gain import finite_width_gain
from pathkernel_datasets.selection.selection import Selection
from pathkernel_datasets.study.study import Study
from pathkernel_views.study_tables import finite_width_gain_table

pytestmark = pytest.mark.filterwarnings("error")

SEEDS, WIDTHS, TEMPERATURES = (3, 4, 7), (0.1, 2), (0.3, 0.02, 1.0)
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
    return open_study(path).load()


def store(path, task, seeds=SEEDS, **settings):
    run_study(Study(task, seeds=seeds, **settings), path, analyses=())
    return open_study(path).load()


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    path = tmp_path_factory.mktemp("gains") / "study"
    return store(path, NOISY, widths=WIDTHS, temperatures=TEMPERATURES)


def right(mean, labels):
    """Which examples are classified correctly, one by one."""
    return np.array([pk.accuracy(mean[i : i + 1], labels[i : i + 1]) for i in range(len(labels))])


def assert_by_hand(dataset, result, temperatures, temperature_gp):
    """Right answers of all examples (seed, example), at every width and in the limit."""
    pairs = zip(dataset["width"].values, temperatures)
    for (width, temperature), test_set in itertools.product(pairs, dataset["test_set"].values):
        finite, limit = [], []
        for seed in SEEDS:
            part = dataset.sel(seed=seed, test_set=test_set)
            point = part.sel(temperature=temperature, width=width)
            labels = part["test_label"].dropna("example").values
            for answers, mean in (
                (finite, point["predictor_mean"]),
                (limit, part["predictor_mean_gp"].sel(temperature=temperature_gp)),
            ):
                answers.append(right(mean.values[: len(labels)], labels))
        gain = np.subtract(finite, limit, dtype=float)
        example_error = np.std(gain.mean(axis=0), ddof=1) / np.sqrt(gain.shape[1])
        for name, expected in {
            "accuracy": np.mean(finite),
            "accuracy_gp": np.mean(limit),
            "gain": gain.mean(),
            "example_error": example_error,
            "seed_error": np.std(gain.mean(axis=1), ddof=1) / np.sqrt(len(SEEDS)),
        }.items():
            value = result[name].sel(test_set=test_set)
            value = value if name == "accuracy_gp" else value.sel(width=width)
            assert value == pytest.approx(expected), name


@pytest.mark.parametrize("choice", [None, "leave-one-out", "paper"])
def test_gains_at_the_temperatures_chosen_over_all_seeds(validated, choice):
    selection = Selection(validated, choice)
    result = finite_width_gain(validated, choice)
    assert result.attrs["seeds"] == list(SEEDS)
    assert_by_hand(validated, result, selection.temperatures, selection.temperature_gp)
    assert (result["gain"] != 0).any()
    np.testing.assert_array_equal(result["temperature"], selection.temperatures)
    assert result["temperature_gp"] == selection.temperature_gp


@pytest.mark.parametrize("outputs", [1, 3])
def test_gains_at_a_given_temperature(tmp_path, outputs):
    dataset = store(tmp_path / "two", Small(outputs=outputs))
    assert_by_hand(dataset, finite_width_gain(dataset, 0.1), (0.1, 0.1), 0.1)
    single = dataset.sel(temperature=[0.1])
    xr.testing.assert_identical(finite_width_gain(single), finite_width_gain(dataset, 0.1))


def test_seeds_that_share_their_examples_do_not_lower_the_error_over_examples(validated):
    one = validated.isel(seed=[0])
    thrice = xr.concat([one.assign_coords(seed=[seed]) for seed in SEEDS], "seed")
    result = finite_width_gain(one)
    xr.testing.assert_allclose(finite_width_gain(thrice)["example_error"], result["example_error"])
    assert result["example_error"].notnull().all()
    assert result["seed_error"].isnull().all(), "of one seed"


def test_a_width_at_which_a_seed_failed_has_no_gain(validated):
    failed = (validated["seed"] == 4) & (validated["width"] == 2)
    broken = validated.assign(predictor_mean=validated["predictor_mean"].where(~failed))
    result, whole = finite_width_gain(broken), finite_width_gain(validated)
    for name in ("accuracy", "gain", "example_error", "seed_error"):
        assert result[name].sel(width=2).isnull().all()
        xr.testing.assert_equal(result[name].sel(width=0.1), whole[name].sel(width=0.1))
    xr.testing.assert_equal(result["accuracy_gp"], whole["accuracy_gp"])


def test_seeds_that_are_not_complete_are_left_out(tmp_path, validated):
    result = finite_width_gain(interrupted(tmp_path / "study", 8))
    assert result.attrs["seeds"] == [3]
    xr.testing.assert_equal(result, finite_width_gain(validated.sel(seed=[3])))


def test_nothing_complete_or_not_there_is_refused(tmp_path, validated):
    with pytest.raises(ValueError, match="no seed of the study is complete, so that"):
        finite_width_gain(interrupted(tmp_path / "study", 1))
    with pytest.raises(ValueError, match=r"no temperature 0.2; it has 0.3, 0.02, 1"):
        finite_width_gain(validated, 0.2)
    plain = store(tmp_path / "plain", Small(), seeds=(3,), widths=(5,))
    for dataset in (plain, plain.isel(temperature=[0])):
        with pytest.raises(ValueError, match="no validation scores"):
            finite_width_gain(dataset, "validation")


def printed(dataset, temperature):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(finite_width_gain_table(dataset, temperature).as_rich(80), crop=False)
    return " ".join(console.export_text().split())


def test_table(validated):
    result, text = finite_width_gain(validated, "validation"), printed(validated, "validation")
    point = result.sel(width=0.1, test_set="long")
    gain, example_error, seed_error = (
        100 * float(point[name]) for name in ("gain", "example_error", "seed_error")
    )
    assert f"{gain:+.1f} ± {example_error:.1f} ({seed_error:.1f})" in text
    assert "both of largest validation accuracy over the seeds" in text
    chosen = f"{float(point['temperature']):g} {float(point['temperature_gp']):g}"
    assert f"0.1 {chosen} " in text
    assert " 0.1 1 1 " in printed(validated, 1), "at a whole number"
