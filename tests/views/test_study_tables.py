"""Tables of real small studies, against the numbers in their datasets."""

import contextlib
import io
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from rich.console import Console

from pathkernel_analyses.plugin import pathkernel_analyses
from pathkernel_core.contracts.task import Examples, Realisation, Task, option
from pathkernel_core.paths.layers import AttentionProduct
from pathkernel_core.system.text import number
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.selection.selection import Selection
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.variables.quantities import STATUS_CODES
from pathkernel_views.study_tables import (
    choice_table,
    finite_width_gain_table,
    study_details,
    study_frame,
    study_summary,
)
from pathkernel_views.table import Table

pytestmark = pytest.mark.filterwarnings("error")

TOKENS, FEATURES = 4, 5


@dataclass(frozen=True)
class Toy(Task):
    """Noisy sequences around a direction that carries the label; two test sets of unequal size."""

    name: ClassVar[str] = "toy"
    summary: ClassVar[str] = "A toy"
    widths: ClassVar[tuple[float, ...]] = (5, 50, 500)
    temperatures: ClassVar[tuple[float, ...]] = (0.1,)

    sub_networks: bool = option(True, "report sub-networks")

    def realise(self, seed):
        generator = np.random.default_rng(seed)

        def draw(count):
            labels = np.resize([1.0, -1.0], count)
            inputs = generator.standard_normal((count, TOKENS, FEATURES))
            inputs[..., 0] += labels[:, None]
            return Examples(inputs, labels)

        return Realisation(
            layers=[
                AttentionProduct(generator.standard_normal((heads, FEATURES, FEATURES)))
                for heads in (2, 1)
            ],
            readout="last",
            train=draw(12),
            test_sets={"near": draw(20), "far": draw(8)},
            sub_networks={"first": ((1,), (1,))} if self.sub_networks else {},
        )


class Stop(Exception):
    pass


def make(path, stop=None, seeds=(0, 1, 2), **study):
    def report(progress):
        if stop is not None and progress.done >= stop and "N =" in progress.doing:
            raise Stop

    study = Study(Toy(), seeds=seeds, **study)
    with contextlib.suppress(Stop):
        run_study(study, path, analyses=pathkernel_analyses(), report=report)
    return open_study(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("studies")


@pytest.fixture(scope="module")
def plain(folder):
    return make(folder / "plain")


@pytest.fixture(scope="module")
def several(folder):
    return make(folder / "several", temperatures=(0.01, 0.3, 3.0), seeds=(0, 1))


@pytest.fixture(scope="module")
def stopped(folder):
    return make(folder / "stopped", stop=4)


def printed(dataset, width=80, temperature=None):
    file = io.StringIO()  # no terminal
    console = Console(width=width, file=file)
    for view in study_summary(dataset, temperature):
        console.print(view.as_rich(width) if isinstance(view, Table) else view, crop=False)
    return file.getvalue()


def rows(dataset, temperature=None, test_set="near"):
    frame = study_frame(dataset, temperature)
    return list(frame[frame["test_set"] == test_set].itertuples())


@pytest.mark.parametrize("test_set", ["near", "far"])
def test_rows_hold_the_stores_numbers(plain, test_set):
    printed = rows(plain, test_set=test_set)
    assert [row.network for row in printed] == ["N = 5", "N = 50", "N = 500", "GP limit", "first"]
    np.testing.assert_array_equal([row.width for row in printed], [5, 50, 500, np.nan, np.nan])
    assert {row.temperature for row in printed} == {0.1}
    assert {row.status for row in printed} == {"ok"}
    at = plain.squeeze("temperature")
    for row in printed[:3]:
        point = at.sel(width=row.width, test_set=test_set)
        for name in ("action", "accuracy"):
            assert getattr(row, f"{name}_median") == float(point[name].median("seed"))
            assert getattr(row, f"{name}_lowest") == float(point[name].min("seed"))
            assert getattr(row, f"{name}_highest") == float(point[name].max("seed"))
            assert getattr(row, f"{name}_seeds") == 3
        assert row.evaluations == float(point.evaluations.median("seed"))
    limits = (at.accuracy_gp, at.accuracy_sub_network.isel(sub_network=0))
    for row, values in zip(printed[3:], limits):
        assert np.isnan([row.action_median, row.action_seeds, row.evaluations]).all()
        assert row.accuracy_median == float(values.sel(test_set=test_set).median("seed"))


def test_without_sub_networks(tmp_path):
    run_study(Study(Toy(sub_networks=False)), tmp_path / "study")
    assert [row.network for row in rows(open_study(tmp_path / "study"))][-1] == "GP limit"


def test_temperature_with_the_largest_evidence_is_chosen_per_width(several):
    several = several.load().copy(deep=True)
    # each temperature the best somewhere; the sum over seeds decides, not any single seed
    several.log_evidence[:] = np.array(
        [
            [[0, -5, -9], [-1, 0, -9], [-9, -9, 0]],
            [[0, 0, -9], [-1, -1, -9], [-9, -9, 0]],
        ],
        dtype=float,
    )
    several.log_evidence_gp[:] = [[-3, -2, -1], [-3, 0, -5]]
    several.log_evidence_sub_network[..., 0] = [[-3, -2, 5], [-3, 0, -5]]
    printed = rows(several, "evidence")
    assert [row.temperature for row in printed] == [0.01, 0.3, 3.0, 0.3, 3.0]
    for row in printed[:3]:
        point = several.sel(width=row.width, temperature=row.temperature)
        assert row.action_median == float(point.action.median("seed"))
    expected = several.accuracy_gp.sel(temperature=0.3, test_set="near").median("seed")
    assert printed[3].accuracy_median == float(expected)
    part = several.accuracy_sub_network.sel(temperature=3.0, test_set="near").median("seed")
    assert printed[4].accuracy_median == float(part[0])
    assert Selection(several).chosen == "leave-one-out"
    words = "T of largest log evidence at each width (0.01 to 3) and in the GP limit (0.3)"
    assert Selection(several, "evidence").describe() == words


def test_real_evidence_agrees_with_xarray(several):
    selection = Selection(several, "evidence")
    best = several.log_evidence.sum("seed").idxmax("temperature")
    np.testing.assert_array_equal(selection.temperatures, best)
    best = several.log_evidence_gp.sum("seed").idxmax("temperature")
    assert selection.temperature_gp == float(best)


@pytest.fixture
def validated(several):
    """A store with a validation accuracy, which says something else than the evidence."""
    several = several.load().copy(deep=True)
    generator = np.random.default_rng(0)
    shape = several.log_evidence.shape
    several["accuracy_validation"] = several.log_evidence.dims, generator.random(shape)
    several["accuracy_validation_gp"] = several.log_evidence_gp.dims, generator.random(shape[:2])
    parts = several.log_evidence_sub_network
    several["accuracy_validation_sub_network"] = parts.dims, generator.random(parts.shape)
    return several


def test_temperature_with_the_largest_validation_accuracy(validated):
    best = validated.accuracy_validation.mean("seed").idxmax("temperature")
    selection = Selection(validated, "validation")
    np.testing.assert_array_equal(selection.temperatures, best)
    limit = validated.accuracy_validation_gp.mean("seed").idxmax("temperature")
    assert selection.temperature_gp == float(limit)
    assert selection.describe(values=False) == "T of largest validation accuracy"
    assert [row.temperature for row in rows(validated, "validation")][:3] == best.values.tolist()
    for word, words in (("validation", "validation accuracy"), ("evidence", "log evidence")):
        text = " ".join(printed(validated, temperature=word).split())  # in lines of a narrow table
        assert f"T of largest {words} at each width" in text
    np.testing.assert_array_equal(Selection(validated).temperatures, best)


def test_equal_validation_accuracies_are_decided_by_the_density(validated):
    validated.accuracy_validation[:] = 0.0
    # the sums 0.1 + 0.7 and 0.4 + 0.4 differ by rounding only
    validated.accuracy_validation[:, 0, 0] = [0.1, 0.7]
    validated.accuracy_validation[:, 2, 0] = [0.4, 0.4]
    density = validated.leave_one_out_log_density
    density[:, 0, 0], density[:, 2, 0] = -5.0, -4.0
    assert Selection(validated, "validation").temperatures[0] == validated.temperature[2]
    density[:, 2, 0] = -6.0
    assert Selection(validated, "validation").temperatures[0] == validated.temperature[0]


def test_failed_temperatures_are_not_chosen_by_validation(validated):
    validated.log_evidence[1, 2, 0] = np.nan
    validated.accuracy_validation[1, 2, 0] = np.nan
    validated.accuracy_validation[0, 2, 0] = 1.0
    validated.status[1, 2, 0] = STATUS_CODES["not_positive_definite"]
    assert Selection(validated, "validation").temperatures[0] != validated.temperature[2]


def test_choices_that_a_store_does_not_have(several):
    with pytest.raises(ValueError, match=r"no validation scores.*name one of 0\.01, 0\.3, 3"):
        Selection(several, "validation")
    with pytest.raises(ValueError, match=r"a number or one of validation, .* paper, not test"):
        rows(several, "test")


def test_temperature_asked_for(several):
    printed = rows(several, temperature=3.0)
    assert {row.temperature for row in printed} == {3.0}
    values = several.action.sel(temperature=3.0, width=50).median("seed")
    assert printed[1].action_median == float(values)
    assert not Selection(several, 3.0).chosen
    with pytest.raises(ValueError, match=r"no temperature 0\.02; it has 0\.01, 0\.3, 3"):
        rows(several, temperature=0.02)


def test_failed_temperatures_are_not_chosen(several):
    several = several.load().copy(deep=True)
    several.log_evidence[:], several.leave_one_out_log_density[:] = -10.0, 0.0
    several.log_evidence[:, 2, 0] = 100.0
    several.log_evidence[1, 2, 0] = np.nan  # best for one seed, failed for the other
    several.status[1, 2, 0] = STATUS_CODES["not_positive_definite"]
    assert rows(several, "evidence")[0].temperature == 0.01
    failed = rows(several, temperature=3.0)[0]
    assert failed.status == "1 of 2 not positive definite"


def test_choice_in_an_unfinished_run_compares_seeds_that_have_all_temperatures(several):
    several = several.load().copy(deep=True)
    several.log_evidence[:] = 0.0
    several.log_evidence[0, 2] = 5.0
    several.log_evidence[1, 0] = 50.0
    several.status[1, 1:] = 0  # the second seed has the first temperature only
    assert set(Selection(several, "evidence").temperatures) == {3.0}


def sentence(dataset, **options):
    """What is printed, as one line."""
    return " ".join(printed(dataset, **options).split())


def test_a_chosen_temperature_at_an_end_of_the_grid_is_said(several):
    assert {row.temperature for row in rows(several, "evidence")} == {0.3}
    assert "of the grid" not in sentence(several, temperature="evidence")
    assert "of the grid" not in sentence(several, temperature=3.0)
    rising = several.load().copy(deep=True)
    rising["log_evidence"] = rising["temperature"].broadcast_like(rising["log_evidence"])
    text = sentence(rising, temperature="evidence")
    assert "T = 3 is the largest of the grid; larger ones may be better." in text
    assert "smallest of" not in text


def test_leave_one_out_of_narrow_networks_is_doubted(several):
    """Two paths, and widths of 5 and more; then the same with the width of a single number."""
    assert "optimistic" not in sentence(several)
    narrow = several.assign_coords(width=[1, 50, 500])
    text = sentence(narrow)
    assert "N = 1: below the number of paths, 2, where leave-one-out is optimistic" in text
    assert "optimistic" not in sentence(narrow, temperature=0.3)


def test_no_temperature_where_nothing_is_computed(several):
    begun = several.load().copy(deep=True)
    begun.status[:, :, 1:] = 0
    begun.reference_done[:] = 0
    temperatures = [row.temperature for row in rows(begun)]
    assert temperatures[0] == rows(several)[0].temperature
    assert np.isnan(temperatures[1:]).all()
    assert [row.temperature for row in rows(begun, 0.3)] == [0.3] * 5
    words = f"T of smallest leave-one-out squared error at each width ({temperatures[0]:g})"
    assert Selection(begun).describe() == words


def test_unfinished_points_do_not_count_even_if_half_written(plain):
    plain = plain.load().copy(deep=True)
    plain.status[2, 0, 1] = 0
    row = rows(plain)[1]
    assert row.action_seeds == 2
    assert row.action_highest == float(plain.action[:2, 0, 1].max())
    assert row.status == "1 of 3 not computed"


def test_status_names_what_did_not_converge(plain):
    plain = plain.load().copy(deep=True)
    plain.status[0, 0, 0] = STATUS_CODES["stalled"]
    plain.status[1, 0, 0] = STATUS_CODES["max_evaluations"]
    row = rows(plain)[0]
    assert row.status == "1 of 3 max evaluations, 1 of 3 stalled"
    assert row.action_seeds == 3  # they have numbers, and are shown


def test_stopped_run(stopped):
    found = rows(stopped)
    assert [row.status for row in found] == [
        "1 of 3 not computed",
        *["2 of 3 not computed"] * 4,  # the limits of a seed come last
    ]
    assert found[0].action_seeds == 2
    assert found[1].evaluations == float(stopped.evaluations[0, 0, 1])
    assert "5 of 9 grid points are not computed yet." in printed(stopped)


def test_nothing_computed(folder):
    nothing = make(folder / "nothing", stop=0)
    found = rows(nothing)
    assert np.isnan([found[0].action_median, found[0].evaluations]).all()
    assert "3 of 3 not computed" in printed(nothing, width=120)


def test_limit_that_failed(plain):
    plain = plain.load().copy(deep=True)
    plain.accuracy_gp[0] = np.nan
    assert rows(plain)[3].status == "1 of 3 not positive definite"


def test_printed_table_fits_a_terminal(plain):
    text = printed(plain)
    assert max(map(len, text.splitlines())) <= 80
    assert "Attention-path theory of toy\n" in text
    assert "Seeds 0, 1, 2; backend numpy, float64; T = 0.1." in " ".join(text.split())
    assert "…" not in text
    row = rows(plain)[1]
    cells = next(line for line in text.splitlines() if "N = 50 " in line).split()
    assert cells[:5] == ["N", "=", "50", "0.1", f"{row.accuracy_median:.3f}"]
    assert f"[{row.accuracy_lowest:.3f}, {row.accuracy_highest:.3f}]" in text
    assert "status" not in text, "all are ok"


def test_single_test_set_has_its_range_beside_the_median(plain):
    one = plain.isel(test_set=[0])
    row = rows(one)[0]
    ends = f"[{row.accuracy_lowest:.3f}, {row.accuracy_highest:.3f}]"
    assert f"{row.accuracy_median:.3f} {ends}" in printed(one)


def test_single_seed_has_no_range(plain):
    text = printed(plain.isel(seed=[1]))
    assert "Seed 1;" in text
    assert "[" not in text
    assert "median" not in text + "".join(
        table.caption for table in study_details(plain.isel(seed=[1]))
    )


def test_names_are_not_taken_for_markup(plain):
    named = plain.load().assign_coords(
        sub_network=np.array(["[bold]"], dtype=np.dtypes.StringDType())
    )
    named.attrs["title"] = "[red]"
    text = printed(named)
    assert "[bold]" in text
    assert "[red]" in text


def test_details_are_documented_and_hold_the_store(several, are_documented):
    (summary, *_), details = study_summary(several), list(study_details(several))
    assert [table.name for table in details] == [
        "minimisation",
        "head_scores",
        "gains",
        "temperature_choice",
    ]
    assert all(table.detail for table in details)
    assert are_documented([table.as_json("study") for table in (summary, *details)])
    labels = {column["name"]: column for column in summary.columns}
    assert labels["action_lowest"]["label"] == "action per width S/N: lowest"
    assert labels["action_lowest"]["units"] == "1"
    assert details[0].rows[0][2] == f"{rows(several)[0].action_median:.4f}"
    scores = Selection(several).point("head_score").sel(width=50).median("seed")
    shown = {row[0]: row[2] for row in details[1].rows}
    assert details[1].headings == ["head", "N = 5", "N = 50", "N = 500", "GP limit"]
    assert shown == {
        str(head): f"{score:.3f}" for head, score in zip(scores["head"].values, scores.values)
    }


def test_choices_of_the_temperature(several):
    several = several.load().copy(deep=True)
    several.log_evidence[:], several.log_evidence_gp[:] = 0.0, 0.0
    several.log_evidence[:, 1], several.log_evidence_gp[:, 2] = 1.0, 1.0
    frame = choice_table(several).frame
    chosen = frame[frame["choice"].str.contains("evidence") & (frame["test_set"] == "near")]
    assert chosen["temperature"].tolist() == [0.3, 0.3, 0.3, 3.0]
    at = several.accuracy.sel(temperature=0.3, test_set="near").median("seed")
    np.testing.assert_array_equal(chosen["accuracy_median"][:3], at)
    assert choice_table(several.isel(temperature=[0])) is None


def test_gains_are_means_and_no_value_is_printed_both_as_mean_and_median(several):
    table = finite_width_gain_table(several, 0.3)
    (row, *_), frame = table.rows, table.frame
    point = frame.iloc[0]
    assert row[:3] == ["5", "0.3", "0.3"]
    assert row[3].startswith(f"{100 * point['gain']:+.1f} ± ")
    assert table.headings[3] == "near"
    assert "in points, mean over the seeds ±" in table.caption
    assert point["accuracy"] - point["accuracy_gp"] == pytest.approx(point["gain"])


def test_numbers_of_widths():
    assert [number(value) for value in (10.0, 1e6, 2.5)] == ["10", "1000000", "2.5"]
