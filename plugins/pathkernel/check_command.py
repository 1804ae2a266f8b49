"""``pathkernel check``: read all of a store and name what is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pathkernel.kept import kept
from pathkernel.options import store_argument
from pathkernel.output import say
from pathkernel.tables_command import TablesCommand

if TYPE_CHECKING:
    from pathkernel_datasets.store import Checked


@click.command(cls=TablesCommand)
@store_argument
def check(store: Path) -> None:
    """Read all of a result store and name what is damaged.

    Exit status 1 if anything is. The command that computed the study, or the result, computes again
    what is damaged of it.
    """
    from pathkernel_datasets.store import check as read_all

    found = read_all(store)
    _keep(found)
    for line in (*found.study, *found.results):
        say(f"Damaged: {line}")
    if found.study:
        say("Run the command again that computed the study: it mends what is damaged of it.")
    if found.results:
        say("Run the command again that computed the result: it mends what is damaged of it.")
    if found.study or found.results:
        raise SystemExit(1)
    say(
        f"Nothing is damaged: {found.computed} of {found.points} points are computed, "
        f"{found.arrays} arrays were read."
    )


def _keep(found: Checked) -> None:
    """The damage, and the counts, as tables for scripts."""
    to = kept()
    if to is None:
        return
    import pandas as pd

    from pathkernel_views.table import Table, labelled_frame

    damaged = [
        *(("study", fault) for fault in found.study),
        *(("results", fault) for fault in found.results),
    ]
    frame = pd.DataFrame(damaged, columns=["part", "damage"])
    to.tables.append(("check", Table("damaged", "Damaged", frame, {})))
    counts = ("points", "computed", "arrays")
    frame = pd.DataFrame({name: [getattr(found, name)] for name in counts})
    frame = labelled_frame(frame, {}, dict.fromkeys(counts, "1"))
    to.tables.append(("check", Table("checked", "Checked", frame, {})))
