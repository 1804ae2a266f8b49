"""Picture of the project's packages, made from their imports.

    python docs/draw_rooms.py           # writes docs/images/rooms.png
    python docs/draw_rooms.py --list    # prints every arrow, and the lines of every room

Floors are the layers in ``pyproject.toml`` that ``lint-imports`` enforces. An arrow is left out of
the picture where others lead to the same room; the list has them all.
"""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "rooms.png"

# Left and right end of every room, in columns, and what it holds
PLACES = {
    "pathkernel": (
        *(0, 4.3),
        "the front door: import pathkernel, python -m pathkernel\n"
        "the command line: run, show, plot, report, heads, train, and a command of every result",
    ),
    "pathkernel_one_shot": (1, 2, "one-shot images:\narchives, episodes, training"),
    "pathkernel_trained": (0.4, 2, "a trained network, compared\nwith the theory, and pruned"),
    "pathkernel_sampling": (2, 3, "the posterior sampled,\nand the next order in 1/N"),
    "pathkernel_capture": (0, 1, "attention of a live model,\nits heads scored, switched off"),
    "pathkernel_report": (3, 4, "a study and its results\nas one HTML page"),
    "pathkernel_tasks": (0, 1.4, "hidden Markov chains;\ndata and heads of one's own"),
    "pathkernel_views": (1.4, 3.3, "console and progress,\ntables and figures"),
    "pathkernel_analyses": (3.3, 4.3, "what is computed\nat every grid point"),
    "pathkernel_datasets": (
        *(0, 3.3),
        "labelled studies: a task on a grid, its store,\nand what is kept beside it",
    ),
    "pathkernel_core": (
        *(0, 4.3),
        "the theory, arrays in and arrays out: kernels, action, minimum, predictor\n"
        "what plugins are made of: task, analysis, sampler, result, and the hooks that find them",
    ),
}
# Okabe and Ito's colours, the front door's and the floors' under it
COLOURS = ("#E69F00", "#D55E00", "#CC79A7", "#56B4E9", "#0072B2", "#009E73")

COLUMN, FLOOR, HEIGHT, GAP = 3.0, 1.36, 0.88, 0.18  # inches


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
    size = (4.3 * COLUMN, (len(floors) - 1) * FLOOR + HEIGHT + 0.75)
    with matplotlib.rc_context({"font.family": "DejaVu Sans"}):
        figure = Figure(figsize=size, facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, size[0]), ylim=(0, size[1]))
        axes.axis("off")
        bottoms = {}
        for level, (floor, colour) in enumerate(zip(reversed(floors), reversed(COLOURS))):
            for name in floor:
                bottoms[name] = 0.65 + level * FLOOR
                _box(axes, rooms[name], bottoms[name], colour)
        for name, other in without_detours(rooms):
            _arrow(axes, name, other, bottoms, rooms[name].arrows[other])
        _legend(axes)
        figure.savefig(file, dpi=150, metadata={"Software": None})


def _ends(name: str) -> tuple[float, float]:
    left, right, _ = PLACES[name]
    return left * COLUMN + GAP, right * COLUMN - GAP


def _box(axes: Axes, room: Room, bottom: float, colour: str) -> None:
    left, right = _ends(room.name)
    box = FancyBboxPatch(
        (left, bottom),
        right - left,
        HEIGHT,
        boxstyle="round,pad=0,rounding_size=0.09",
        facecolor=(*to_rgb(colour), 0.16),
        edgecolor=colour,
        linewidth=1.3,
    )
    axes.add_patch(box)
    top, words = bottom + HEIGHT - 0.14, PLACES[room.name][2]
    mark = " ◆" if room.plugin else ""
    style = {"va": "top", "color": "#222222"}
    axes.text(left + 0.14, top, room.name + mark, fontsize=10.5, weight="bold", **style)
    lines = f"{round(room.lines, -2):,}"
    axes.text(right - 0.14, top - 0.01, lines, fontsize=9, ha="right", va="top", color="#555555")
    axes.text(left + 0.14, top - 0.28, words, fontsize=9, linespacing=1.3, **style)


def _arrow(axes: Axes, name: str, other: str, bottoms: dict[str, float], modules: int) -> None:
    upper, lower = _ends(name), _ends(other)
    overlap = max(upper[0], lower[0]), min(upper[1], lower[1])
    x = sum(overlap) / 2
    start, end = (x, bottoms[name]), (x, bottoms[other] + HEIGHT)
    arrow = FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>",
        mutation_scale=13,
        shrinkA=1,
        shrinkB=1,
        color="#555555",
        linewidth=1.2,
    )
    axes.add_patch(arrow)
    middle = start[1] - 0.2
    axes.text(x + 0.09, middle, str(modules), fontsize=8.5, va="center", color="#555555")


def _legend(axes: Axes) -> None:
    words = (
        "An arrow leads from a room to one that it imports; the number counts the modules that do. "
        "Arrows that others imply are left out.\n"
        "At the right of a room: lines of source.   ◆ registers itself by an entry point, as any "
        "plugin; nobody needs to import it."
    )
    axes.text(GAP, 0.12, words, fontsize=8.5, va="bottom", color="#555555", linespacing=1.4)


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
