"""``pathkernel check``: read all of a store and name what is damaged."""

from __future__ import annotations

from pathlib import Path

import click

from pathkernel.output import say


@click.command()
@click.argument("store", metavar="FILE.zarr", type=click.Path(path_type=Path))
def check(store: Path) -> None:
    """Read all of a result store and name what is damaged.

    Exit status 1 if anything is. What is damaged of the study is computed again by the command that
    computed it; a damaged result is computed again once it is deleted.
    """
    from pathkernel_datasets import check as checking

    found = checking.check(store)
    for line in (*found.study, *found.results):
        say(f"Damaged: {line}")
    if found.study:
        say("Run the command again that computed the study: it mends what is damaged of it.")
    if found.results:
        say("Delete the folder of the result in the store, and compute it again.")
    if found.unchecked:
        say(
            f"{found.unchecked} of {found.arrays} arrays have no checksums, as an older version "
            "wrote them: changes that can still be decoded stay unseen there."
        )
    if found.study or found.results:
        raise SystemExit(1)
    say(
        f"Nothing is damaged: {found.computed} of {found.points} points are computed, "
        f"{found.arrays} arrays were read."
    )
