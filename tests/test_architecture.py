"""Rules of the rooms that no import tells; ``lint-imports`` checks those of imports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = {
    Path(folder).name: ROOT / folder
    for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
}


def test_every_room_has_rules():
    linted = PROJECT["tool"]["importlinter"]["root_packages"]
    assert sorted(linted) == sorted([*FOLDERS, "benchmarks"])
    assert sorted(PROJECT["tool"]["coverage"]["run"]["source_pkgs"]) == sorted(FOLDERS)
    layers = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    assert sorted(re.findall(r"\w+", " ".join(layers))) == sorted(FOLDERS)


@pytest.mark.parametrize("room", FOLDERS)
def test_modules_imported_by_name_are_the_rooms_own(room):
    """What needs an extra is imported by its name, which no checker of imports sees."""
    if room == "pathkernel":
        return  # the front door may import everything
    for file in FOLDERS[room].rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for name in re.findall(r'import_(?:extra|module)\("(\w+)|needs_\w+\("(\w+)', text):
            name = "".join(name)
            assert name == room or not name.startswith("pathkernel"), f"{file} imports {name}"
