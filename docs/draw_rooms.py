"""Picture of the project's packages, made from their imports.

    python docs/draw_rooms.py           # writes docs/images/rooms.png
    python docs/draw_rooms.py --list    # prints every arrow, and the lines of every room

Floors are the layers in ``pyproject.toml`` that ``lint-imports`` enforces. An arrow is left out of
the picture where others lead to the same room; the list has them all.
"""

from __future__ import annotations

import argparse
import ast
import io
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

import vl_convert
from PIL import Image

from pathkernel_views.chart import AMBER, BLUE, GREEN, INK, ORANGE, PURPLE, SKY

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "rooms.png"

# Left and right end of every room, in columns, and what it holds
PLACES = {
    "pathkernel": (
        *(0, 4.3),
        "the front door: import pathkernel, python -m pathkernel\n"
        "the command line: run, show, plot, report, train, and a command for each result",
    ),
    "pathkernel_one_shot": (1, 2, "one-shot images:\narchives, episodes, training"),
    "pathkernel_trained": (1, 2, "a trained network, compared\nwith the theory, and pruned"),
    "pathkernel_sampling": (2, 3, "the posterior sampled,\nand the next order in 1/N"),
    "pathkernel_capture": (0, 1, "attention of a live model,\nits heads scored, switched off"),
    "pathkernel_phases": (3, 4.3, "maps of phases,\nlearning curves"),
    "pathkernel_heads": (
        *(0.55, 2),
        "heads of any network: their axis,\nscores, orders of removal, comparison",
    ),
    "pathkernel_tasks": (0, 1.4, "hidden Markov chains;\ndata and heads of one's own"),
    "pathkernel_views": (1.4, 3.3, "tables, charts\nand the HTML report"),
    "pathkernel_analyses": (3.3, 4.3, "quantities computed\nat every grid point"),
    "pathkernel_datasets": (
        *(0, 3.3),
        "labelled studies: a task on a grid,\nits folder, and the results in it",
    ),
    "pathkernel_core": (
        *(0, 4.3),
        "the theory, arrays in and arrays out: kernels, action, minimum, predictor\n"
        "the contracts of plugins: task, analysis, sampler, result, and the hooks that find them",
    ),
}
COLOURS = (
    AMBER,
    ORANGE,
    PURPLE,
    INK,
    SKY,
    BLUE,
    GREEN,
)  # of the front door and the floors under it
PALE, LEGEND = (
    "#555555",
    """\
An arrow leads from a room to one that it imports; its number counts the importing modules. Arrows \
that others imply are left out.
At the right of a room: lines of source.   ● registers by an entry point, as any plugin does; \
nothing has to import it.""",
)

COLUMN, FLOOR, HEIGHT, GAP = 216, 98, 63, 13  # points


@dataclass(frozen=True)
class Room:
    """A package of the project.

    Attributes
    ----------
    name : str
    lines : int
        Of its source, docstrings and empty lines among them.
    arrows : dict of str to int
        Number of its modules that import from each other room.
    plugin : bool
        Whether an entry point of the project names one of its modules.
    """

    name: str
    lines: int
    arrows: dict[str, int]
    plugin: bool


def read_rooms() -> tuple[list[list[str]], dict[str, Room]]:
    """Names of the rooms of every floor, from the top, and the rooms by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {
        Path(folder).name: ROOT / folder
        for folder in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    }
    points = project["project"]["entry-points"]["pathkernel"].values()
    plugins = {module.split(".")[0] for module in points}
    rooms = {}
    for name, folder in folders.items():
        lines, arrows = 0, dict.fromkeys(folders, 0)
        for file in sorted(folder.rglob("*.py")):
            source = file.read_text(encoding="utf-8")
            lines += len(source.splitlines())
            for other in set(imported(source)) & set(folders) - {name}:
                arrows[other] += 1
        arrows = {other: count for other, count in arrows.items() if count}
        rooms[name] = Room(name, lines, arrows, name in plugins)
    (layers,) = (
        contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )
    return [layer.split(" | ") for layer in layers], rooms


def imported(source: str) -> Iterator[str]:
    """Top-level packages that a module imports, inside functions and for types too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def without_detours(rooms: dict[str, Room]) -> list[tuple[str, str]]:
    """Arrows that no path over a third room replaces."""

    def reached(name: str) -> set[str]:
        return {name}.union(*(reached(other) for other in rooms[name].arrows))

    return [
        (name, other)
        for name, room in rooms.items()
        for other in room.arrows
        if not any(other in reached(third) for third in room.arrows if third != other)
    ]


def draw(floors: list[list[str]], rooms: dict[str, Room], file: Path) -> None:
    """Write the picture, as large as it is to be seen."""
    if missing := set(rooms) - set(PLACES):
        raise SystemExit(f"give a place to {', '.join(sorted(missing))} in PLACES")
    width, height = 4.3 * COLUMN, (len(floors) - 1) * FLOOR + HEIGHT + 54
    tops = {name: 7 + level * FLOOR for level, floor in enumerate(floors) for name in floor}
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="Liberation Sans"><rect width="100%" height="100%" fill="white"/>',
        '<marker id="head" markerWidth="10" markerHeight="8" refX="9" refY="4" orient="auto" '
        f'markerUnits="userSpaceOnUse"><path d="M0,0 L10,4 L0,8 z" fill="{PALE}"/></marker>',
    ]
    for name, other in without_detours(rooms):  # behind the rooms that they pass
        elements += _arrow(name, other, tops, rooms[name].arrows[other])
    for floor, colour in zip(floors, COLOURS):
        for name in floor:
            elements += _box(rooms[name], tops[name], colour)
    elements += [*_text(GAP, height - 23, LEGEND, PALE, 8.5), "</svg>"]
    png = vl_convert.svg_to_png("".join(elements), scale=150 / 72)
    Image.open(io.BytesIO(png)).convert("RGB").save(file, optimize=True)


def _ends(name: str) -> tuple[float, float]:
    left, right, _ = PLACES[name]
    return left * COLUMN + GAP, right * COLUMN - GAP


def _box(room: Room, top: float, colour: str) -> Iterator[str]:
    left, right = _ends(room.name)
    shape = f'<rect x="{left}" y="{top}" width="{right - left}" height="{HEIGHT}" rx="6" '
    yield f'{shape} fill="white"/>'
    yield f'{shape} fill="{colour}" fill-opacity="0.16" stroke="{colour}" stroke-width="1.3"/>'
    mark = " ●" if room.plugin else ""
    yield from _text(left + 10, top + 19, room.name + mark, INK, 10.5, 'font-weight="bold"')
    lines = f"{round(room.lines, -2):,}"
    yield from _text(right - 10, top + 19, lines, PALE, 9, 'text-anchor="end"')
    yield from _text(left + 10, top + 37, PLACES[room.name][2], INK, 9)


def _arrow(name: str, other: str, tops: dict[str, float], modules: int) -> Iterator[str]:
    upper, lower = _ends(name), _ends(other)
    x = (max(upper[0], lower[0]) + min(upper[1], lower[1])) / 2
    start = tops[name] + HEIGHT + 1
    yield (
        f'<line x1="{x}" y1="{start}" x2="{x}" y2="{tops[other] - 1}" stroke="{PALE}" '
        'stroke-width="1.2" marker-end="url(#head)"/>'
    )
    yield from _text(x + 6, start + 16, str(modules), PALE, 8.5)


def _text(
    x: float, y: float, text: str, colour: str, size: float, style: str = ""
) -> Iterator[str]:
    """Lines of text, the first with its foot at y."""
    for number, line in enumerate(text.splitlines()):
        yield (
            f'<text x="{x}" y="{y + 1.4 * size * number}" font-size="{size}" fill="{colour}" '
            f"{style}>{escape(line)}</text>"
        )


def print_list(floors: list[list[str]], rooms: dict[str, Room]) -> None:
    """Print every arrow with its number of importing modules, and the lines of every room."""
    for name in (name for floor in floors for name in floor):
        room = rooms[name]
        print(f"{name}  {room.lines} lines")
        for other, modules in sorted(room.arrows.items(), key=lambda item: -item[1]):
            print(f"    -> {other}  {modules} {'module' if modules == 1 else 'modules'}")


def main() -> None:
    """Draw, or list."""
    parser = argparse.ArgumentParser(description="Picture of the packages, from their imports.")
    parser.add_argument("--list", action="store_true", help="print the arrows instead")
    parser.add_argument("--out", type=Path, default=PICTURE, help="file of the picture")
    chosen = parser.parse_args()
    floors, rooms = read_rooms()
    if chosen.list:
        print_list(floors, rooms)
    else:
        draw(floors, rooms, chosen.out)


if __name__ == "__main__":
    main()
