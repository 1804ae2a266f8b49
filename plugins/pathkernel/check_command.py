"""``pathkernel check``: read all of a store and name what is damaged."""

from __future__ import annotations

from pathlib import Path

import click


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
        click.echo(f"Damaged: {line}")
    if found.study:
        click.echo("Run the command again that computed the study: it computes again what is lost.")
    if found.results:
        click.echo("Delete the folder of the result in the store, and compute it again.")
    if found.unchecked:
        click.echo(
            f"{found.unchecked} of {found.arrays} arrays have no checksums, as an older version "
            "wrote them: changes that can still be decoded stay unseen there."
        )
    if found.study or found.results:
        raise SystemExit(1)
    click.echo(
        f"Nothing is damaged: {found.computed} of {found.points} points are computed, "
        f"{found.arrays} arrays were read."
    )
