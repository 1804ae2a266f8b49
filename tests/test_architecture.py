"""Rules of the rooms that no import tells; ``lint-imports`` checks those of imports."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = {
    Path(folder).name: ROOT / folder
    for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
}

_SHARED = ("__init__.py", "conftest.py")  # of which a folder has one each


def test_every_room_has_rules():
    linted = PROJECT["tool"]["importlinter"]["root_packages"]
    assert sorted(linted) == sorted([*FOLDERS, "benchmarks"])
    assert sorted(PROJECT["tool"]["coverage"]["run"]["source_pkgs"]) == sorted(FOLDERS)
    layers = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    assert sorted(re.findall(r"\w+", " ".join(layers))) == sorted(FOLDERS)


@pytest.mark.parametrize("folder", [*FOLDERS.values(), ROOT / "benchmarks", ROOT / "tests"])
def test_a_folder_has_at_most_twenty_modules(folder):
    """More of them are no longer seen at a glance."""
    modules = Counter(file.parent for file in folder.rglob("*.py") if file.name not in _SHARED)
    assert modules
    assert {str(path): count for path, count in modules.items() if count > 20} == {}


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
