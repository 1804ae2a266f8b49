"""``pathkernel prune STORE``: which heads of a trained network matter, and pruned networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pathkernel_cli.output import progress_bar, stdout_console
from pathkernel_cli.parameters import Numbers

if TYPE_CHECKING:
    import xarray as xr

    from pathkernel_pruning.study import PruningProgress

_ORDERS = (
    *("theory", "sampled", "trained"),
    *("gradient", "raw-gradient", "magnitude", "ablation"),
)


@click.command()
@click.argument("store", metavar="FILE.zarr", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="The trained network.  [default: the study's file of heads]",
)
@click.option(
    "--order",
    type=click.Choice(_ORDERS),
    default="theory",
    show_default=True,
    help="What --remove goes by; the tables show all.",
)
@click.option("--remove", type=click.IntRange(min=1), help="Heads to remove for --out.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File of the pruned network to write (.safetensors).",
)
@click.option(
    "--episodes",
    type=click.IntRange(min=2),
    default=10_000,
    show_default=True,
    help="Episodes of each set, an even number.",
)
@click.option(
    "--width",
    "--widths",
    "widths",
    type=Numbers(float, "N,N,…"),
    help="Widths N, among the study's, whose order parameters score heads; --order goes by the "
    "first.  [default: that of largest log evidence, 10, and those with draws]",
)
@click.option(
    "--temperature",
    type=float,
    help="Temperature T, one of the study's; by default, at each width, that of most evidence.",
)
@click.option("--seed", type=int, help="Seed, one of the study's; by default its first.")
@click.option(
    "--figures/--no-figures",
    default=True,
    show_default=True,
    help="Write figures into a folder beside the store.",
)
def prune(
    store: Path,
    checkpoint: Path | None,
    order: str,
    remove: int | None,
    out: Path | None,
    episodes: int,
    widths: tuple[float, ...] | None,
    temperature: float | None,
    seed: int | None,
    figures: bool,
) -> None:
    """Find which heads of a trained network matter, and remove those that do not.

    FILE.zarr is a study of one-shot images with the network's heads: pathkernel run one-shot-images
    --heads network.safetensors. Heads are removed in increasing order of several scores, without
    training again, and the networks that are left are tested on unseen characters and on images
    of other kinds. The outcome is kept in the store's group "pruning".
    """
    if (remove is None) != (out is None):
        raise click.UsageError(
            "--remove says how many heads to remove and --out where the pruned network goes: give "
            "both or none"
        )
    from threadpoolctl import threadpool_limits

    from pathkernel_pruning.study import prune_study

    if out is not None:  # before the work, not after it
        _check_removal(store, checkpoint, remove, out)

    with threadpool_limits(limits=1), progress_bar() as bar:
        line = bar.add_task("starting", total=None)

        def report(progress: PruningProgress) -> None:
            bar.update(
                line, completed=progress.done, total=progress.total, description=progress.doing
            )

        result = prune_study(
            store,
            checkpoint=checkpoint,
            widths=widths,
            temperature=temperature,
            seed=seed,
            needs=order if out is not None else None,
            episodes=episodes,
            report=report,
        )
    _print(result)
    if figures:
        from pathkernel_pruning.figures import save_pruning_figures

        folder = store.with_name(f"{store.stem}-figures") / "pruning"
        save_pruning_figures(result, folder, lambda text: click.echo(text, err=True))
        click.echo(f"Figures: {folder.resolve()}")
    if out is not None:
        _write(result, store, checkpoint, order, remove, out)
    click.echo(f"Results: {store.resolve()}, group pruning")


def _print(result: xr.Dataset) -> None:
    from pathkernel_pruning import tables
    from pathkernel_pruning.correlation import COEFFICIENTS

    console = stdout_console()
    for table in (
        tables.head_table(result),
        tables.single_head_table(result),
        tables.order_table(result),
        tables.accuracy_table(result),
        *(tables.correlation_table(result, name) for name in COEFFICIENTS),
        tables.grid_table(result),
    ):
        console.print(table)
    whole = result["accuracy"].isel(order=0, removed=0)
    errors = result["accuracy_error"].isel(order=0, removed=0)
    for name, accuracy, error in zip(result["test_set"].values, whole.values, errors.values):
        if accuracy < 0.5 + 3 * error:
            click.echo(
                f"Warning: on {name} the whole network is no better than chance ({accuracy:.1%} ± "
                f"{error:.1%}), so that no order can be told from another.",
                err=True,
            )


def _check_removal(store: Path, checkpoint: Path | None, remove: int, out: Path) -> None:
    from pathkernel_training.study_checkpoint import study_checkpoint

    file, whole = study_checkpoint(store, checkpoint)
    if out.suffix.lower() != ".safetensors" or not out.resolve().parent.is_dir():
        raise click.UsageError(f"--out {out} must end in .safetensors, in a folder that exists")
    if out.exists() and out.samefile(file):
        raise click.UsageError(f"--out {out} is the trained network itself; name another file")
    heads = whole.shape.heads_per_layer
    if remove > sum(heads) - len(heads):
        raise click.UsageError(
            f"--remove {remove} is too much: of {sum(heads)} heads at most "
            f"{sum(heads) - len(heads)} can go, as each of the {len(heads)} layers keeps one"
        )


def _write(
    result: xr.Dataset, store: Path, checkpoint: Path | None, order: str, remove: int, out: Path
) -> None:
    from pathkernel_pruning.heads import removal_order
    from pathkernel_pruning.networks import network_cost, pruned_checkpoint
    from pathkernel_pruning.study import order_named
    from pathkernel_pruning.tables import scores_of
    from pathkernel_tasks.one_shot_images import TOKENS, WIDTH
    from pathkernel_training.checkpoint import save_checkpoint
    from pathkernel_training.study_checkpoint import study_checkpoint

    name = order_named(result, order)
    removed = removal_order(scores_of(result, name)).first(remove)
    _, whole = study_checkpoint(store, checkpoint)
    pruned = pruned_checkpoint(whole, removed)
    save_checkpoint(out, pruned)
    before, after = (network_cost(each.shape, WIDTH, TOKENS) for each in (whole, pruned))
    click.echo(
        f"Removed by {name}: {', '.join(f'{layer}-{head}' for layer, head in removed)}; heads left "
        f"in each layer: {', '.join(map(str, pruned.shape.heads_per_layer))}"
    )
    here = result.sel(order=name, removed=remove)
    whole_accuracy = result["accuracy"].sel(order=name, removed=0)
    losses = zip(
        result["test_set"].values,
        100 * (whole_accuracy - here["accuracy"]).values,
        100 * here["accuracy_drop_error"].values,
    )
    lost = ", ".join(f"{loss:.1f} ± {error:.1f} on {name}" for name, loss, error in losses)
    click.echo(f"Points of accuracy lost: {lost}")
    for words, old, new in (
        ("parameters", before.parameters, after.parameters),
        ("operations per episode", before.flops, after.flops),
    ):
        click.echo(f"{words.capitalize()}: {old:,} before, {new:,} now ({1 - new / old:.1%} less)")
    click.echo(f"Pruned network: {out.resolve()}")
