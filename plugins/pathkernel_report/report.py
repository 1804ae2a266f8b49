"""A store as a page: which sections there are, and what stands in them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import xarray as xr
from matplotlib.figure import Figure

from pathkernel_core.errors import PathkernelError
from pathkernel_datasets.atomic import replacing
from pathkernel_datasets.labelling import json_attribute
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import number
from pathkernel_datasets.swept import by_value
from pathkernel_report.page import GENERATOR, Drawing, Facts, Page, Section, not_drawn
from pathkernel_views.chart import Chart, within
from pathkernel_views.figure_files import NothingToPlot

_HEAD = 4096  # characters in which a report says what it is
_DEEPEST = 20  # brackets within brackets of an attribute that is read as JSON


class ReportFileError(PathkernelError, FileExistsError):
    """A file is in the way that is no report."""


@dataclass(frozen=True)
class Part:
    """The study, or a result beside it, as it is to be shown.

    Attributes
    ----------
    heading : str
    tables : iterable
        Tables of rich, and lines of text.
    charts, figures : mapping of str to callable
        What gives the charts, and what draws the figures, by name. A chart takes the place of the
        figures whose names end in its own; it may itself be a figure, which stands for several.
    """

    heading: str
    tables: Iterable[Any] = ()
    charts: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    figures: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


def write_report(
    dataset: xr.Dataset, store: Path, parts: Iterable[Part], out: str | os.PathLike
) -> None:
    """Write the page of a store.

    Parameters
    ----------
    dataset : xarray.Dataset
        The study, from :func:`pathkernel_datasets.store.open_store`.
    store : Path
        Named in the page.
    parts : iterable of Part
    out : path
        File to write; a report that is there is replaced, whole or not at all.

    Raises
    ------
    ReportFileError
        If a file is there that is no report.
    MissingExtraError
        If the extra ``report`` is not installed.
    OSError
        If the file cannot be written.
    """
    _check_own(Path(out))
    sections = [Section("Overview", [_facts(dataset), *_notes(dataset)])]
    sections += [Section(part.heading, list(_views(part))) for part in parts]
    sections.append(Section("Provenance", [_provenance(dataset)]))
    page = Page(str(dataset.attrs.get("label", store.stem)), f"pathkernel study {store.name}")
    with replacing(out) as partial:
        partial.write_text(page.html(sections), encoding="utf-8")


def _check_own(file: Path) -> None:
    if file.is_dir():
        raise ReportFileError(f"{file} is a folder; name a file by --out")
    if file.is_file() and file.stat().st_size:
        with open(file, encoding="utf-8", errors="replace") as stream:
            if GENERATOR not in stream.read(_HEAD):
                raise ReportFileError(
                    f"{file} is there already and is no report; delete it, or name another by --out"
                )


def _views(part: Part) -> Iterator[Any]:
    """What a part shows; what cannot be shown is a line that says why, and the others stand."""
    others = {
        name: draw
        for name, draw in part.figures.items()
        if name.rpartition("/")[2] not in part.charts
    }
    for name, give in {**part.charts, **others}.items():
        for found in _tried(name, give):
            yield Drawing(name, found) if isinstance(found, Figure) else found
    yield from part.tables


def _tried(name: str, give: Callable[[], Any]) -> Iterator[Any]:
    try:
        found = give()
        yield within(found) if isinstance(found, Chart) else found
    except NothingToPlot as reason:
        yield f"{name.replace('_', ' ')}: left out, {reason}"
    except (PathkernelError, OSError):
        raise
    except Exception as error:  # whatever a stranger's figure raises, the others must be seen
        yield not_drawn(name, error)


def _facts(dataset: xr.Dataset) -> Facts:
    status = dataset["status"].values
    converged = int((status == STATUS_CODES["converged"]).sum())
    heads = (
        json_attribute(dataset.attrs, "heads_per_layer")
        if "heads_per_layer" in dataset.attrs
        else None
    )
    entries = [
        ("paths", dataset.sizes["path"]),
        ("widths N", _span(dataset, "width")),
        ("temperatures T", _span(dataset, "temperature")),
        ("seeds", _span(dataset, "seed")),
        ("points converged", f"{converged} of {status.size}"),
    ]
    if heads:
        entries.insert(0, ("heads per layer", ", ".join(map(str, heads))))
    if "training_examples" in dataset.attrs:
        entries.insert(1, ("training examples", dataset.attrs["training_examples"]))
    return Facts(entries)


def _span(dataset: xr.Dataset, name: str) -> str:
    values = sorted(dataset[name].values.tolist())
    if len(values) <= 3:
        return ", ".join(map(number, values))
    return f"{len(values)} from {number(values[0])} to {number(values[-1])}"


def _notes(dataset: xr.Dataset) -> list[str]:
    every = [json_attribute(part.attrs, "notes") for part in by_value(dataset).values()]
    notes = [f"{name.capitalize()}: {note}" for held in every for name, note in held.items()]
    return list(dict.fromkeys(notes))


def _provenance(dataset: xr.Dataset) -> Facts:
    held = {name.replace("_", " "): _read(value) for name, value in dataset.attrs.items()}
    return Facts([(name, value) for name, value in held.items() if value not in ({}, [])], True)


def _read(value: Any) -> Any:
    """An attribute as it is, or what it is as JSON, if that is not nested too deep to be read."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        depths = accumulate((sign in "[{") - (sign in "]}") for sign in value)
        if max(depths) <= _DEEPEST:
            with suppress(ValueError):
                return json.loads(value)
        return value
    return value.tolist() if hasattr(value, "tolist") else value
