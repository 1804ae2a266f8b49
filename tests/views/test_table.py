"""Tables: cells, files, labels, and narrow terminals."""

import io
import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from rich.console import Console

from pathkernel_views.files import FileInTheWayError
from pathkernel_views.table import Table, frame_of, labelled_frame, write_csv


def printed(table, width=80):
    file = io.StringIO()
    Console(width=width, file=file).print(table.as_rich(width), crop=False)
    return file.getvalue()


def cells(template, **columns):
    return [row[0] for row in Table("t", "", pd.DataFrame(columns), {"h": template}).rows]


def test_cells_by_templates():
    assert cells("{x}", x=[10.0, 2.5, 1e6]) == ["10", "2.5", "1000000"]
    assert cells("{x:.3f}", x=[0.12345, 1.5e15, 2e-5, 0.0]) == [
        "0.123",
        "1.500e+15",
        "2e-05",
        "0.000",
    ]
    assert cells("{x:+.1f}", x=[0.01]) == ["+0.01"]
    assert cells("{x:.1f} ± {e:.1f}", x=[1.0, np.nan, 2.0], e=[0.5, np.nan, None]) == [
        "1.0 ± 0.5",
        "-",
        "2.0 ± -",
    ]
    day = np.datetime64("2026-11-23T01:02", "s")
    assert cells("{x}", x=[day, "[b]text"]) == ["2026-11-23T01:02:00", "[b]text"]


def test_a_column_goes_across():
    frame = pd.DataFrame({"N": [1, 1, 2], "of": ["a", "b", "a"], "x": [0.1, 0.2, 0.3]})
    table = Table("t", "", frame, {"N": "{N}"}, across=("of", "{x:.1f}"), lines="N")
    assert table.headings == ["N", "a", "b"]
    assert table.rows == [["1", "0.1", "0.2"], ["2", "0.3", "-"]]
    assert table.numeric == [True, True, True]
    assert printed(table).count("\n\n") == 0
    first = Table("t", "", frame, {"of": "", "N": "{N}"}, across=("of", "{x:.1f}"))
    assert first.headings == ["a", "b", "N"]


def test_frames_have_a_row_for_each_combination_of_labels():
    values = xr.Dataset(
        {
            "gain": (("width", "set"), [[0.1, np.nan], [0.3, np.inf]], {"units": "nat"}),
            "limit": ("set", [1, 2], {"long_name": "value in the limit"}),
        },
        {"width": [10.0, 100.0], "set": ["a", "b"], "meaning": ("set", ["near", "far"])},
    )
    table = Table("gains", "A title", frame_of(values), {})
    content = table.as_json("study")
    assert json.loads(json.dumps(content["rows"], allow_nan=False)) == [
        {"width": w, "set": s, "meaning": words, "gain": gain, "limit": limit}
        for w, s, words, gain, limit in (
            (10, "a", "near", 0.1, 1),
            (10, "b", "far", None, 2),
            (100, "a", "near", 0.3, 1),
            (100, "b", "far", None, 2),
        )
    ]
    assert [column["units"] for column in content["columns"]] == [None, None, None, "nat", None]
    assert content["columns"][-1]["label"] == "value in the limit"
    assert frame_of(xr.Dataset({"x": 1.5}))["x"].tolist() == [1.5]
    labelled = labelled_frame(table.frame, {"set": "test set"}, {"width": "1"})
    assert labelled.attrs["columns"]["set"]["label"] == "test set"
    assert labelled.attrs["columns"]["gain"]["units"] == "nat"


def test_csv_files_replace_their_own_only(tmp_path):
    def table(*values, name="N"):
        return Table("of_n", "", pd.DataFrame({name: values, "what": "\x1b[1m,"}), {})

    (file,) = write_csv([("study", table(0.1)), ("study", table(1e300))], tmp_path / "a" / "b")
    assert file == tmp_path / "a" / "b" / "study-of_n.csv"
    assert file.read_text() == 'N,what\n0.1,"\\x1b[1m,"\n1e+300,"\\x1b[1m,"\n'
    write_csv([("study", table(np.nan, 10.0))], file.parent)
    assert file.read_text() == 'N,what\n,"\\x1b[1m,"\n10,"\\x1b[1m,"\n'
    with pytest.raises(
        FileInTheWayError, match="is not a table of the columns width, what; delete it"
    ):
        write_csv([("study", table(2, name="width"))], file.parent)
    assert file.read_text().startswith("N,what")
    long = [(f"{'a' * 60}-{end}", table(n)) for n, end in enumerate("bc")]
    assert [file.read_text().split()[1][0] for file in write_csv(long, tmp_path)] == ["0", "1"]


def test_html_is_escaped():
    frame = pd.DataFrame({"a": ["<script>\u202e"], "b": [1.5]})
    text = Table("t", "", frame, {"<a>": "{a}", "b": "{b}"}).as_html()
    assert "<script>" not in text
    assert "&lt;script&gt;\\u202e" in text
    assert '<td class="number">1.5' in text


def test_a_narrow_terminal_loses_nothing():
    frame = pd.DataFrame(
        {
            "network": ["N = 10", "good + denoising"],
            "s": [9.271, 1.5e15],
            "low": [0.75, np.nan],
            "status": ["ok", "1 of 2 not computed"],
        }
    )
    cells = {"network": "{network}", "S/N": "{s:.4f}", "test": "{low:.3f} [{low:.3f}, {low:.3f}]"}
    caption = "Words that are wider than the table are not squeezed into its width. [b]"
    title = "Title that is wider than all of the columns are together"
    table = Table("t", title, frame, cells | {"status": "{status}"}, caption)
    for width in (10, 30, 50, 100):
        text = printed(table, width)
        for words in ("network", "N = 10", "denoising", "9.2710", "1.5000e+15", "computed"):
            assert words in text, width
        assert "0.750 [0.750, 0.750]" in text
        assert "…" not in text
    assert caption in text
