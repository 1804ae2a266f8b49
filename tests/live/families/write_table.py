"""Try every family of small_models.py, and write the rows of docs/families.md.

``nox -s families`` runs it, and ``nox -s families -- GPT-2 BERT`` for two rows. Those of libraries
that are not installed stay as they are; so do those of models whose outputs are wrong, which are
named at the end, and the exit status is then 1.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

from small_models import SMALL_MODELS, SmallModel

from pathkernel_capture.capture import capture
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_table import list_heads
from pathkernel_pruning.live.testing import check_heads, reason

PAGE = Path(__file__).parents[3] / "docs" / "families.md"
TITLES = ("kind", "off", "picture", "smaller", "saved", "loaded by", "made with")
STEPS = ("off", "mean", "gains", "zero")
LOADED = ("from_pretrained", "load_model", "load_model with model=")
MODULES = {
    "torch": "torch",
    "transformers": "transformers",
    "timm": "timm",
    "transformer-lens": "transformer_lens",
}


def read_rows(page: str) -> dict[str, list[str]]:
    """Cells of every row of the page's table, by kind."""
    lines = [line for line in page.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0]: row for row in rows}


def with_rows(page: str, rows: Mapping[str, list[str]]) -> str:
    """Return the page with other rows in its table."""
    lines = page.splitlines()
    table = [number for number, line in enumerate(lines) if line.startswith("|")]
    head = [f"| {' | '.join(TITLES)} |", f"|{' --- |' * len(TITLES)}"]
    new = [f"| {' | '.join(row)} |" for row in rows.values()]
    return "\n".join([*lines[: table[0]], *head, *new, *lines[table[-1] + 1 :], ""])


def row_of(name: str, small: SmallModel) -> list[str]:
    """Build a small model, and fill its row; raise an error of what is no refusal."""
    model, batch = small.make()
    answers = check_heads(model, batch, small.projection, small.heads)
    try:
        capture(model, [batch], readout="last", layers=small.layers)
        picture = "yes"
    except CaptureError as error:
        picture = reason(error)
    cells = [answers["off"], picture, answers["smaller"], answers["saved"]]
    cells = [cell if cell == "yes" else f"no: {_as_clause(cell)}" for cell in cells]
    lacking = next((step for step in STEPS if answers[step] != "yes"), None)
    if cells[0] == "yes" and lacking is not None:
        cells[0] += f", but no {lacking}: {_as_clause(answers[lacking])}"
    if whole := list_heads(model).attrs["without_heads"]:
        cells[2] += f", and {', '.join(whole)} left whole"
    loaded = answers["loaded"]
    if loaded not in LOADED:
        loaded = f"no: {_as_clause(loaded)}" if cells[-1] == "yes" else "no: not saved"
    return [name, *cells, loaded, versions(small)]


def _as_clause(cause: str) -> str:
    """Return a cause without a list behind it, beginning with a small letter."""
    cause = cause.partition(": ")[0]
    return cause[0].lower() + cause[1:] if cause.split()[0].istitle() else cause


def versions(small: SmallModel) -> str:
    """Distributions that make a model, with their versions."""
    names = ["transformer-lens", "transformers"] if "lens" in small.library else [small.library]
    return ", ".join(
        f"{name} {importlib.metadata.version(name).partition('+')[0]}" for name in names
    )


def main(*names: str) -> int:
    """Write the rows of some kinds, of all by default, and return the exit status."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if importlib.util.find_spec("transformers"):
        importlib.import_module("transformers").logging.disable_progress_bar()
    rows, wrong = read_rows(PAGE.read_text(encoding="utf-8")), []
    written = {}
    for name, small in SMALL_MODELS.items():
        if names and name not in names:
            pass
        elif not importlib.util.find_spec(MODULES[small.library]):
            print(f"{name}: {small.library} is not installed", flush=True)
        else:
            try:
                rows[name] = row_of(name, small)
            except Exception as error:
                wrong.append(f"{name}: {type(error).__name__}: {error}")
            print(" | ".join(rows.get(name, [name])), flush=True)
        if name in rows:
            written[name] = rows[name]
    PAGE.write_text(with_rows(PAGE.read_text(encoding="utf-8"), written), encoding="utf-8")
    print("\n".join(wrong), file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
