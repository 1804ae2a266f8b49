"""``pathkernel check``: read all of a study's folder and name the damage."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from pathkernel.commands.options import folder_argument
from pathkernel.commands.output import current_record, say
from pathkernel.commands.tables import TablesCommand


@click.command(cls=TablesCommand, params=[folder_argument])
def check(folder: Path) -> None:
    """Name all damage in the folder of a study.

    Reads all files of the study and of its results. Exit status 1 if any is damaged. The command
    that computed the study, or the result, mends it when it is run again.
    """
    from pathkernel_datasets.folder.check import check as read_all

    checked = read_all(folder)
    damage = [("study", fault) for fault in checked.study]
    damage += [("results", fault) for fault in checked.results]
    if (record := current_record()) is not None:
        import pandas as pd

        from pathkernel_views.table import Table, labelled_frame

        counts = ("points", "computed", "arrays")
        counted = pd.DataFrame({name: [getattr(checked, name)] for name in counts})
        counted = labelled_frame(counted, {}, dict.fromkeys(counts, "1"))
        damaged = pd.DataFrame(damage, columns=["part", "damage"])
        record.tables += [
            ("check", Table("damaged", "Damaged", damaged, {})),
            ("check", Table("checked", "Checked", counted, {})),
        ]
    for _, fault in damage:
        say(f"Damaged: {fault}")
    name = shlex.quote(str(folder))
    of_study = f"pathkernel show {name} --toml > study.toml && pathkernel run study.toml"
    commands = {"study": f", or {of_study}", "results": f", such as pathkernel sample {name}"}
    for part in dict(damage):
        say(f"Run the command again that computed the {part}{commands[part]}: it mends the damage.")
    if damage:
        raise SystemExit(1)
    say(
        f"Nothing is damaged: {checked.computed} of {checked.points} points are computed, "
        f"{checked.arrays} arrays were read.",
        wrap=True,
    )
    if not checked.is_published:
        say(
            "The study is in progress, or its run was interrupted: run the command again that "
            f"computes it, or {of_study}"
        )
