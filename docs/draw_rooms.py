"""Pictures of the project's packages, and of those of the core, made from their imports.

    python docs/draw_rooms.py           # writes rooms.png and core.png into docs/images
    python docs/draw_rooms.py --list    # prints every arrow, and the lines of every room

Floors are the layers in ``pyproject.toml`` that ``lint-imports`` enforces. An arrow is left out of
a picture where others lead to the same room; the list has them all. Every arrow of a picture points
down, and passes behind no room.
"""

from __future__ import annotations

import argparse
import ast
import io
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path

import vl_convert
from PIL import Image

from pathkernel_views.chart import AMBER, BLUE, GREEN, INK, PURPLE, RUST, SKY

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CORE = "pathkernel_core"

# Left and right end of every room, in columns, and what it holds
PLACES = {
    "pathkernel": (
        *(0, 4.3),
        "the front door: import pathkernel, python -m pathkernel\n"
        "the command line: run, show, plot, report, train, and a command for each result",
    ),
    "pathkernel_one_shot": (0, 2.1, "one-shot images:\narchives, episodes, training"),
    "pathkernel_trained": (
        *(0, 2.1),
        "a trained network, compared\nwith the theory, and pruned",
    ),
    "pathkernel_sampling": (2.1, 3.05, "the posterior sampled,\nand the next order in 1/N"),
    "pathkernel_phases": (3.05, 4.3, "maps of phases,\nlearning curves"),
    "pathkernel_capture": (0.2, 1.2, "the theory's picture\nof a live model"),
    "pathkernel_pruning": (
        *(1.2, 2.45),
        "heads of any network: scored, chosen,\nrefitted, removed, compared, saved",
    ),
    "pathkernel_models": (0.7, 2.15, "heads of any live model:\nfound, switched, watched"),
    "pathkernel_tasks": (0, 1.4, "hidden Markov chains;\ndata and heads of one's own"),
    "pathkernel_views": (1.6, 3.35, "tables, charts\nand the HTML report"),
    "pathkernel_analyses": (3.35, 4.3, "quantities computed\nat every grid point"),
    "pathkernel_datasets": (
        *(0.2, 3.35),
        "labelled studies: a task on a grid,\nits folder, and the results in it",
    ),
    CORE: (
        *(0, 4.3),
        "the theory, arrays in and arrays out: kernels, action, minimum, predictor\n"
        "the contracts of plugins: task, analysis, sampler, result, and the hooks that find them",
    ),
}
PLACES_OF_CORE = {
    "contracts": (0, 1, "plugins: tasks, analyses,\nsamplers, results, hooks"),
    "learned": (1, 2.1, "queries and keys\nas random variables"),
    "prediction": (1, 2.1, "scores, cross-validation,\nderivatives of the predictor"),
    "phases": (2.1, 3.2, "crossings, spinodals,\nand their curves"),
    "action": (0, 3.2, "the action, its minimum,\nand what follows at it"),
    "energy": (0, 3.2, "the problem,\nand its energy in every form"),
    "paths": (0, 3.2, "the network, its attention,\nand inputs along its paths"),
    "arrays": (0, 3.2, "array libraries behind one namespace:\nexact products, checked numbers"),
    "system": (0, 3.2, "files, memory, threads, messages and progress:\nnothing of the theory"),
}
COLOURS = (AMBER, RUST, PURPLE, GREEN, SKY, AMBER, BLUE, GREEN)  # of floors, from the top
PALE = "#555555"
ARROWS = """\
An arrow leads from a room to one that it imports; its number counts the importing modules. Arrows \
that others imply are left out.
At the right of a room: lines of source."""
PLUGINS = "   ● registers by an entry point, as any plugin does; nothing has to import it."

COLUMN, FLOOR, HEIGHT, GAP = 216, 98, 63, 13  # points


@dataclass(frozen=True)
class Room:
    """A package.

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


@dataclass(frozen=True)
class House:
    """Rooms on floors, and their places in a picture.

    Attributes
    ----------
    floors : list of list of str
        Names of the rooms of every floor, from the top.
    rooms : dict of str to Room
    places : mapping of str to tuple
        Left and right end, in columns, and what is in a room.
    """

    floors: list[list[str]]
    rooms: dict[str, Room]
    places: Mapping[str, tuple[float, float, str]]

    @cached_property
    def tops(self) -> dict[str, float]:
        """Upper ends of the rooms."""
        return {name: 7 + n * FLOOR for n, floor in enumerate(self.floors) for name in floor}

    @cached_property
    def drawn_arrows(self) -> list[tuple[str, str]]:
        """Arrows that no path over a third room replaces."""

        def reached(name: str) -> set[str]:
            return {name}.union(*(reached(other) for other in self.rooms[name].arrows))

        return [
            (name, other)
            for name, room in self.rooms.items()
            for other in room.arrows
            if not any(other in reached(third) for third in room.arrows if third != other)
        ]

    def ends(self, name: str) -> tuple[float, float]:
        """Left and right end of a room."""
        left, right, _ = self.places[name]
        return left * COLUMN + GAP, right * COLUMN - GAP

    def gap_between(self, name: str, other: str) -> float:
        """Middle of the widest gap through which a vertical arrow leads from a room to another."""
        (left, right), lower = self.ends(name), self.ends(other)
        gaps = [(max(left, lower[0]), min(right, lower[1]))]
        for between in self.rooms:
            if self.tops[name] < self.tops[between] < self.tops[other]:
                left, right = self.ends(between)
                gaps = [gap for a, b in gaps for gap in ((a, min(b, left)), (max(a, right), b))]
        start, end = max(gaps, key=lambda gap: gap[1] - gap[0])
        if end - start < GAP:
            raise SystemExit(f"the arrow from {name} to {other} has no way: move one of them")
        return (start + end) / 2


def read_project() -> House:
    """Packages of the project."""
    folders = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    rooms = read_rooms({Path(folder).name: ROOT / folder for folder in folders})
    return House(read_floors(), rooms, PLACES)


def read_core() -> House:
    """Packages of the core."""
    files = sorted((ROOT / CORE).glob("*/__init__.py"))
    rooms = read_rooms({f"{CORE}.{file.parent.name}": file.parent for file in files})
    places = {f"{CORE}.{name}": place for name, place in PLACES_OF_CORE.items()}
    return House(read_floors(CORE), rooms, places)


def read_floors(container: str = "") -> list[list[str]]:
    """Names of the rooms on every floor, from the top: of the project, or of one of its rooms."""
    (layers,) = (
        contract["layers"]
        for contract in PROJECT["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers" and "".join(contract.get("containers", [])) == container
    )
    prefix = f"{container}." if container else ""
    return [[prefix + name for name in layer.split(" | ")] for layer in layers]


def read_rooms(folders: Mapping[str, Path]) -> dict[str, Room]:
    """Rooms by the names of their packages."""
    points = PROJECT["project"]["entry-points"]["pathkernel"].values()
    plugins = {module.split(".")[0] for module in points}
    rooms = {}
    for name, folder in folders.items():
        lines, arrows = 0, dict.fromkeys(folders, 0)
        for file in sorted(folder.rglob("*.py")):
            source = file.read_text(encoding="utf-8")
            lines += len(source.splitlines())
            modules = [f"{module}." for module in imported(source)]
            for other in folders:
                if other != name and any(module.startswith(f"{other}.") for module in modules):
                    arrows[other] += 1
        arrows = {other: count for other, count in arrows.items() if count}
        rooms[name] = Room(name, lines, arrows, name in plugins)
    return rooms


def imported(source: str) -> Iterator[str]:
    """Modules, or names in them, that a module imports, inside functions and for types too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def draw(house: House, file: Path, legend: str) -> None:
    """Write the picture, as large as it is to be seen."""
    if missing := set(house.rooms) - set(house.places):
        raise SystemExit(f"give a place to {', '.join(sorted(missing))}")
    columns = max(right for _, right, _ in house.places.values())
    width, height = columns * COLUMN, (len(house.floors) - 1) * FLOOR + HEIGHT + 54
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="Liberation Sans"><rect width="100%" height="100%" fill="white"/>',
        '<marker id="head" markerWidth="10" markerHeight="8" refX="9" refY="4" orient="auto" '
        f'markerUnits="userSpaceOnUse"><path d="M0,0 L10,4 L0,8 z" fill="{PALE}"/></marker>',
    ]
    for name, other in house.drawn_arrows:
        elements += _arrow(house, name, other)
    for floor, colour in zip(house.floors, COLOURS, strict=True):
        for name in floor:
            elements += _box(house, name, colour)
    elements += [*_text(GAP, height - 23, legend, PALE, 8.5), "</svg>"]
    png = vl_convert.svg_to_png("".join(elements), scale=150 / 72)
    Image.open(io.BytesIO(png)).convert("RGB").save(file, optimize=True)


def _box(house: House, name: str, colour: str) -> Iterator[str]:
    room, top = house.rooms[name], house.tops[name]
    left, right = house.ends(name)
    shape = f'<rect x="{left}" y="{top}" width="{right - left}" height="{HEIGHT}" rx="6" '
    yield f'{shape} fill="white"/>'
    yield f'{shape} fill="{colour}" fill-opacity="0.16" stroke="{colour}" stroke-width="1.3"/>'
    mark = " ●" if room.plugin else ""
    yield from _text(left + 10, top + 19, name + mark, INK, 10.5, 'font-weight="bold"')
    lines = f"{round(room.lines, -2):,}"
    yield from _text(right - 10, top + 19, lines, PALE, 9, 'text-anchor="end"')
    yield from _text(left + 10, top + 37, house.places[name][2], INK, 9)


def _arrow(house: House, name: str, other: str) -> Iterator[str]:
    x, start = house.gap_between(name, other), house.tops[name] + HEIGHT + 1
    yield (
        f'<line x1="{x}" y1="{start}" x2="{x}" y2="{house.tops[other] - 1}" stroke="{PALE}" '
        'stroke-width="1.2" marker-end="url(#head)"/>'
    )
    yield from _text(x + 6, start + 16, str(house.rooms[name].arrows[other]), PALE, 8.5)


def _text(
    x: float, y: float, text: str, colour: str, size: float, style: str = ""
) -> Iterator[str]:
    """Lines of text, the first with its foot at y."""
    for number, line in enumerate(text.splitlines()):
        yield (
            f'<text x="{x}" y="{y + 1.4 * size * number}" font-size="{size}" fill="{colour}" '
            f"{style}>{escape(line)}</text>"
        )


def print_list(house: House) -> None:
    """Print the number of rooms and arrows, every arrow, and the lines of every room."""
    arrows = sum(len(room.arrows) for room in house.rooms.values())
    floors, drawn = len(house.floors), len(house.drawn_arrows)
    print(f"{len(house.rooms)} rooms on {floors} floors, {arrows} arrows, {drawn} of them drawn")
    for name in (name for floor in house.floors for name in floor):
        room = house.rooms[name]
        print(f"{name}  {room.lines} lines")
        for other, modules in sorted(room.arrows.items(), key=lambda item: -item[1]):
            print(f"    -> {other}  {modules} {'module' if modules == 1 else 'modules'}")


def main() -> None:
    """Draw, or list."""
    parser = argparse.ArgumentParser(description="Pictures of the packages, from their imports.")
    parser.add_argument("--list", action="store_true", help="print the arrows instead")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "images", help="folder of the pictures"
    )
    chosen = parser.parse_args()
    project, core = read_project(), read_core()
    if chosen.list:
        print_list(project)
        print()
        print_list(core)
    else:
        draw(project, chosen.out / "rooms.png", ARROWS + PLUGINS)
        draw(core, chosen.out / "core.png", ARROWS)


if __name__ == "__main__":
    main()
