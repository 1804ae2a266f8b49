"""Tables of real small stores, against the numbers in the stores."""

import contextlib
import io
import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from pathkernel_analyses.plugin import pathkernel_analyses
from pathkernel_core.attention import AttentionProduct
from pathkernel_core.task import Examples, Realisation, Task, option
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import Selection, Spread, number
from pathkernel_datasets.store import open_store
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import run_study
from pathkernel_views.table_data import TableFileError, write_csv
from pathkernel_views.tables import rich_table, summary
from pathkernel_views.value_table import Column, shown, value_table

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
    return open_store(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def plain(folder):
    return make(folder / "plain.zarr")


@pytest.fixture(scope="module")
def several(folder):
    return make(folder / "several.zarr", temperatures=(0.01, 0.3, 3.0), seeds=(0, 1))


@pytest.fixture(scope="module")
def stopped(folder):
    return make(folder / "stopped.zarr", stop=4)


def printed(dataset, width=80, **options):
    file = io.StringIO()  # no terminal
    Console(width=width, file=file).print(rich_table(dataset, **options))
    return file.getvalue()


def test_rows_hold_the_stores_numbers(plain):
    rows = summary(plain)
    assert [row.name for row in rows] == ["N = 5", "N = 50", "N = 500", "GP limit", "first"]
    assert [row.width for row in rows] == [5.0, 50.0, 500.0, None, None]
    assert {row.temperature for row in rows} == {0.1}
    assert {row.status for row in rows} == {"ok"}
    at = plain.squeeze("temperature")
    for row in rows[:3]:
        point = at.sel(width=row.width)
        assert row.action == Spread(
            float(point.action.median("seed")),
            float(point.action.min("seed")),
            float(point.action.max("seed")),
            3,
        )
        assert row.evaluations == float(point.evaluations.median("seed"))
        assert list(row.scores["accuracy"]) == ["near", "far"]
        for name, spread in row.scores["accuracy"].items():
            values = point.accuracy.sel(test_set=name)
            assert spread.median == float(values.median("seed"))
            assert spread.lowest == float(values.min("seed"))
            assert spread.highest == float(values.max("seed"))
    limits = (at.accuracy_gp, at.accuracy_sub_network.isel(sub_network=0))
    for row, values in zip(rows[3:], limits):
        assert row.action is None
        assert row.evaluations is None
        for name, spread in row.scores["accuracy"].items():
            assert spread.median == float(values.sel(test_set=name).median("seed"))


def test_without_sub_networks(tmp_path):
    run_study(Study(Toy(sub_networks=False)), tmp_path / "store.zarr")
    assert [row.name for row in summary(open_store(tmp_path / "store.zarr"))][-1] == "GP limit"


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
    rows = summary(several, "evidence")
    assert [row.temperature for row in rows] == [0.01, 0.3, 3.0, 0.3, 3.0]
    for row in rows[:3]:
        point = several.sel(width=row.width, temperature=row.temperature)
        assert row.action.median == float(point.action.median("seed"))
    expected = several.accuracy_gp.sel(temperature=0.3, test_set="near").median("seed")
    assert rows[3].scores["accuracy"]["near"].median == float(expected)
    part = several.accuracy_sub_network.sel(temperature=3.0, test_set="near").median("seed")
    assert rows[4].scores["accuracy"]["near"].median == float(part[0])
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
    assert [row.temperature for row in summary(validated, "validation")][:3] == best.values.tolist()
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
        summary(several, "test")


def test_temperature_asked_for(several):
    rows = summary(several, temperature=3.0)
    assert {row.temperature for row in rows} == {3.0}
    values = several.action.sel(temperature=3.0, width=50).median("seed")
    assert rows[1].action.median == float(values)
    assert not Selection(several, 3.0).chosen
    with pytest.raises(ValueError, match=r"no temperature 0\.02; it has 0\.01, 0\.3, 3"):
        summary(several, temperature=0.02)


def test_failed_temperatures_are_not_chosen(several):
    several = several.load().copy(deep=True)
    several.log_evidence[:], several.leave_one_out_log_density[:] = -10.0, 0.0
    several.log_evidence[:, 2, 0] = 100.0
    several.log_evidence[1, 2, 0] = np.nan  # best for one seed, failed for the other
    several.status[1, 2, 0] = STATUS_CODES["not_positive_definite"]
    assert summary(several, "evidence")[0].temperature == 0.01
    failed = summary(several, temperature=3.0)[0]
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
    assert {row.temperature for row in summary(several, "evidence")} == {0.3}
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
    temperatures = [row.temperature for row in summary(begun)]
    assert temperatures[0] == summary(several)[0].temperature
    assert np.isnan(temperatures[1:]).all()
    assert [row.temperature for row in summary(begun, 0.3)] == [0.3] * 5
    words = f"T of smallest leave-one-out squared error at each width ({temperatures[0]:g})"
    assert Selection(begun).describe() == words


def test_unfinished_points_do_not_count_even_if_half_written(plain):
    plain = plain.load().copy(deep=True)
    plain.status[2, 0, 1] = 0
    row = summary(plain)[1]
    assert row.action.seeds == 2
    assert row.action.highest == float(plain.action[:2, 0, 1].max())
    assert row.status == "1 of 3 not computed"


def test_status_names_what_did_not_converge(plain):
    plain = plain.load().copy(deep=True)
    plain.status[0, 0, 0] = STATUS_CODES["stalled"]
    plain.status[1, 0, 0] = STATUS_CODES["max_evaluations"]
    row = summary(plain)[0]
    assert row.status == "1 of 3 max evaluations, 1 of 3 stalled"
    assert row.action.seeds == 3  # they have numbers, and are shown


def test_stopped_run(stopped):
    rows = summary(stopped)
    assert [row.status for row in rows] == [
        "1 of 3 not computed",
        "2 of 3 not computed",
        "2 of 3 not computed",
        "1 of 3 not computed",
        "1 of 3 not computed",
    ]
    assert rows[0].action.seeds == 2
    assert rows[1].evaluations == float(stopped.evaluations[0, 0, 1])
    assert "5 of 9 grid points are not computed yet." in printed(stopped)


def test_nothing_computed(folder):
    nothing = make(folder / "nothing.zarr", stop=0)
    rows = summary(nothing)
    assert np.isnan(rows[0].action.median)
    assert np.isnan(rows[0].evaluations)
    assert "3 of 3 not computed" in printed(nothing, width=120)


def test_limit_that_failed(plain):
    plain = plain.load().copy(deep=True)
    plain.accuracy_gp[0] = np.nan
    assert summary(plain)[3].status == "1 of 3 not positive definite"


def test_printed_table_fits_a_terminal(plain):
    text = printed(plain)
    assert max(map(len, text.splitlines())) <= 80
    assert "Attention-path theory of toy: A toy" in text
    assert "Seeds 0, 1, 2; backend numpy, float64; T = 0.1." in text
    assert "…" not in text
    rows = summary(plain)
    cells = next(line for line in text.splitlines() if "N = 50 " in line).split()
    assert cells[3:6] == [
        "0.1",
        f"{rows[1].action.median:.4f}",
        f"{rows[1].scores['accuracy']['near'].median:.3f}",
    ]
    assert cells[-2:] == [f"{rows[1].evaluations:.0f}", "ok"]
    spread = rows[1].scores["accuracy"]["near"]
    assert f"{spread.lowest:.3f}-{spread.highest:.3f}" in text


def test_files_hold_the_same_in_full_precision(several, are_documented):
    table = rich_table(several).data
    assert are_documented([table.as_json("study")])
    rows = iter(table.rows)
    for row in summary(several):
        for name, spread in row.scores["accuracy"].items():
            found = next(rows)
            assert (found["network"], found["width"], found["test_set"]) == (
                *(row.name, row.width, name),
            )
            assert found["temperature"] == row.temperature
            assert found["accuracy_median"] == spread.median
            assert (found["accuracy_lowest"], found["accuracy_highest"]) == (
                *(spread.lowest, spread.highest),
            )
            assert found["action_median"] == (row.action and row.action.median)
    assert next(rows, None) is None
    labelled = {column.name: (column.label, column.units) for column in table.columns}
    assert labelled["action_lowest"] == ("action per width S/N: lowest", "1")


def test_files_of_labelled_values_have_a_row_for_each_combination():
    values = xr.Dataset(
        {
            "gain": (("width", "set"), [[0.1, np.nan], [0.3, np.inf]], {"units": "nat"}),
            "limit": ("set", [1, 2], {"long_name": "value in the limit"}),
        },
        {"width": [10.0, 100.0], "set": ["a", "b"], "meaning": ("set", ["near", "far"])},
    )
    columns = [Column("any", [""])]
    table = value_table("A title", columns, name="Gains", of={"seed": 3}, data=values).data
    assert (table.name, table.title) == ("gains", "A title")
    assert table.rows == [
        {"seed": 3, "width": w, "set": s, "meaning": words, "gain": gain, "limit": limit}
        for w, s, words, gain, limit in (
            (10.0, "a", "near", 0.1, 1),
            (10.0, "b", "far", None, 2),
            (100.0, "a", "near", 0.3, 1),
            (100.0, "b", "far", None, 2),
        )
    ]
    assert [column.units for column in table.columns] == ["", "", "", "", "nat", ""]
    assert table.columns[-1].label == "value in the limit"
    day = np.datetime64("2026-11-23T01:02", "ns")
    held = xr.Dataset({"when": ("n", [day, np.datetime64("NaT", "ns")]), "took": ("n", [1j, 2])})
    rows = value_table("", [], data=held).data.rows
    assert json.loads(json.dumps(rows)) == [
        {"when": "2026-11-23T01:02:00.000000000", "took": "1j"},
        {"when": None, "took": "(2+0j)"},
    ]
    assert shown(day.astype("datetime64[m]"), ".3f") == "2026-11-23T01:02"
    made_up = [Column(heading, [value]) for value, heading in enumerate(("x_3", "x", "x", "x_3"))]
    assert list(value_table("", made_up).data.rows[0].values()) == [0, 1, 2, 3]
    doubled = [Column("±", [1.5]), Column("±", [np.float32(2)]), Column("±  \nε", [None])]
    (row,) = value_table("", doubled).data.rows
    assert row == {"column_1": 1.5, "column_2": 2.0, "ε": None}


def test_csv_files_replace_their_own_only(tmp_path):
    def table(*values, heading="N"):
        return value_table("of N", [Column(heading, values), Column("what", ["\x1b[1m,"])]).data

    (file,) = write_csv([("study", table(0.1)), ("study", table(1e300))], tmp_path / "a" / "b")
    assert file == tmp_path / "a" / "b" / "study-of_n.csv"
    assert file.read_text() == 'n,what\n0.1,"\\x1b[1m,"\n1e+300,"\\x1b[1m,"\n'
    write_csv([("study", table(np.nan))], file.parent)
    assert file.read_text() == 'n,what\n,"\\x1b[1m,"\n'
    with pytest.raises(TableFileError, match="with other columns than width, what; delete it"):
        write_csv([("study", table(2, heading="width"))], file.parent)
    assert file.read_text().startswith("n,what")


def test_every_table_has_a_file_of_its_own(tmp_path):
    def table(title, value, name=""):
        return "study", value_table(title, [Column("x", [value])], name=name).data

    long = "ℵ" * 300
    tables = [table("N > 1", 1), table("N < 1", 2), table("N > 1", 3)]
    tables += [
        table("one", 4, "same"),
        table("Same", 5, "same"),
        table(long, 6),
        table(long + "!", 7),
    ]
    files = write_csv(tables, tmp_path)
    assert [file.read_text().split()[1:] for file in files] == [
        ["1", "3"],
        ["2"],
        ["4", "5"],
        ["6"],
        ["7"],
    ]
    assert [file.name for file in files[:3]] == [
        "study-n_1.csv",
        "study-n_1-2.csv",
        "study-same.csv",
    ]


def test_numbers_are_aligned_to_the_right(plain):
    lines = printed(plain).splitlines()
    ends = {line.index(" ok") for line in lines if line.rstrip().endswith(" ok")}
    assert len(ends) == 1
    table = rich_table(plain)
    assert {column.justify for column in table.columns[1:]} == {"right"}


def test_single_test_set_has_its_range_beside_the_median(plain):
    one = plain.isel(test_set=[0])
    spread = summary(one)[0].scores["accuracy"]["near"]
    expected = f"{spread.median:.3f} [{spread.lowest:.3f}, {spread.highest:.3f}]"
    assert expected in printed(one)


def test_single_seed_has_no_range(plain):
    text = printed(plain.isel(seed=[1]))
    assert "one seed" in text
    assert "Seed 1;" in text
    assert "-0." not in text


def test_names_are_not_taken_for_markup(plain):
    named = plain.load().assign_coords(
        sub_network=np.array(["[bold]"], dtype=np.dtypes.StringDType())
    )
    named.attrs["title"] = "[red]"
    text = printed(named)
    assert "[bold]" in text
    assert "[red]" in text


def test_spread_leaves_nan_out():
    assert Spread.of([3.0, np.nan, 1.0]) == Spread(2.0, 1.0, 3.0, 2)
    assert Spread.of([]).seeds == 0


def test_numbers_of_widths():
    assert [number(value) for value in (10.0, 1e6, 2.5)] == ["10", "1000000", "2.5"]


def test_a_narrow_terminal_loses_nothing():
    """Lines go on below where the columns do not fit; names are broken between words only."""
    columns = [
        Column("network", ["N = 10", "good + denoising"]),
        Column("S/N", [9.271, 1.5e15], ".4f"),
        Column("test", ["0.750 [0.750, 0.750]", "-"]),
        Column("status", ["ok", "1 of 2 not computed"], wraps=True),
    ]
    caption = "Words that are wider than the table are not squeezed into its width."
    table = value_table(
        "Title that is wider than all of the columns are together", columns, caption
    )
    for width in (10, 30, 50, 100):
        file = io.StringIO()
        Console(width=width, file=file).print(table, crop=False)
        text = file.getvalue()
        for words in ("network", "N = 10", "denoising", "9.2710", "1.5000e+15", "computed"):
            assert words in text, width
        assert "0.750 [0.750, 0.750]" in text
        assert "…" not in text
    assert caption in text
