"""``pathkernel sample STORE``: sample the posterior at a point of a study."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from pathkernel_cli.output import leave_interrupted, progress_bar, stdout_console
from pathkernel_cli.parameters import Numbers
from pathkernel_core.hooks import Plugins

if TYPE_CHECKING:
    from rich.progress import Progress

    from pathkernel_sampling.run import SampleProgress

_EXTRA = ("arviz_base", "arviz_stats", "blackjax", "jax")


def point_options(command: Callable) -> Callable:
    """Add the argument and options that choose points of a study to a command."""
    for decorate in (
        click.option("--seed", type=int, help="Seed, one of the study's; by default its first."),
        click.option(
            "--temperature",
            type=float,
            help="Temperature T, one of the study's; by default the one with most evidence.",
        ),
        click.option(
            "--width",
            "--widths",
            "widths",
            type=Numbers(float, "N,N,…"),
            required=True,
            help="Widths N, among the study's.",
        ),
        click.argument("store", metavar="FILE.zarr", type=click.Path(path_type=Path)),
    ):
        command = decorate(command)
    return command


def prepare_jax() -> None:
    """Make JAX compute in float64 and on one core; it must not be imported yet."""
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )


def import_extra(module: str) -> ModuleType:
    """Import a module that needs the extra ``sampling``, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        raise click.ClickException(
            f"sampling needs {error.name}, which is not installed; install it with: pip install "
            '"pathkernel[sampling]"'
        ) from None


@click.command()
@point_options
@click.option(
    "--sampler",
    metavar="NAME",
    default="order-parameter",
    show_default=True,
    help="order-parameter, collapsed, weights, or one that a plugin adds.",
)
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    help="Draws of each chain.  [default: 1000, or as many as --target-ess takes]",
)
@click.option(
    "--chains", type=click.IntRange(min=1), default=4, show_default=True, help="Chains to draw."
)
@click.option(
    "--warm-up",
    type=click.IntRange(min=20),
    default=500,
    show_default=True,
    help="Steps of adaptation before the draws.",
)
@click.option(
    "--target-ess",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop at this effective sample size of every entry of U, over all chains.",
)
@click.option(
    "--thin",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Evaluate the predictor at every so-many-th draw.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Chains that are drawn at the same time.",
)
@click.option(
    "--figures/--no-figures",
    default=True,
    show_default=True,
    help="Write figures into a folder beside the store.",
)
@click.option("--trace", is_flag=True, help="Also write trace and rank plots.")
def sample(
    store: Path,
    widths: tuple[float, ...],
    temperature: float | None,
    seed: int | None,
    sampler: str,
    draws: int | None,
    chains: int,
    warm_up: int,
    target_ess: float | None,
    thin: int,
    jobs: int,
    figures: bool,
    trace: bool,
) -> None:
    """Sample the exact posterior at points of a study.

    Draws of the no-U-turn sampler go beside the theory's results into the same Zarr store, as
    ArviZ takes them. Running the same command again goes on where it stopped; more draws, or a
    larger effective sample size, extend a finished run.
    """
    prepare_jax()
    sample_study = import_extra("pathkernel_sampling.run").sample_study
    from threadpoolctl import threadpool_limits

    plugins = click.get_current_context().find_object(Plugins)
    for place, width in enumerate(widths):
        try:
            with threadpool_limits(limits=1), progress_bar() as bar:
                report = _Reporter(bar, f"N = {width:g}")
                group = sample_study(
                    store,
                    sampler,
                    width=width,
                    temperature=temperature,
                    seed=seed,
                    draws=draws,
                    chains=chains,
                    warm_up=warm_up,
                    thin=thin,
                    target_ess=target_ess,
                    jobs=jobs,
                    plugins=plugins,
                    report=report,
                )
        except KeyboardInterrupt:
            leave_interrupted(f"What is drawn is in {store}; run the same command again to go on.")
        _print(store, group)
        if not report.called:
            click.echo("Nothing was left to draw: the run was complete.")
        if figures:
            _draw(store, group, trace)
        if place < len(widths) - 1:
            click.echo()
    click.echo(f"Results: {store.resolve()}")


def _print(store: Path, group: str) -> None:
    from pathkernel_datasets.store import open_store
    from pathkernel_sampling.correct import open_correction
    from pathkernel_sampling.diagnostics import diagnose
    from pathkernel_sampling.sample_store import open_samples
    from pathkernel_sampling.sample_tables import (
        Theory,
        accuracy_table,
        describe_evidence,
        order_parameter_table,
        run_point,
    )

    run = open_samples(store, group)
    correction = open_correction(store, run_point(run))
    theory, diagnostics = Theory.of(open_store(store), run, correction), diagnose(run)
    console = stdout_console()
    console.print(order_parameter_table(run, theory, diagnostics))
    console.print(accuracy_table(run, theory))
    click.echo(describe_evidence(run, theory))
    for line in diagnostics.warnings():
        click.echo(f"Warning: {line}.")
    click.echo(f"Group: {group}")


def _draw(store: Path, group: str, trace: bool) -> None:
    from pathkernel_sampling.figures import save_sample_figures

    folder = store.with_name(f"{store.stem}-figures") / group
    save_sample_figures(
        store, group, folder, trace=trace, report=lambda line: click.echo(line, err=True)
    )
    click.echo(f"Figures: {folder.resolve()}")


class _Reporter:
    """Shows a run's progress on a bar."""

    def __init__(self, bar: Progress, point: str):
        self._bar, self._point = bar, point
        self._line = bar.add_task(f"{point}: starting", total=None)
        self._drawing = False
        self.called = False  # whether there was anything to do

    def __call__(self, progress: SampleProgress) -> None:
        self.called = True
        if progress.done and not self._drawing:  # the time left is of draws, not of the warm-up
            self._drawing = True
            self._bar.reset(self._line)
        words = f"{self._point}: {progress.doing}"
        if progress.ess == progress.ess:
            words += f", min ESS {progress.ess:.0f}"
        if progress.divergences:
            words += f", {progress.divergences} divergences"
        self._bar.update(
            self._line, completed=progress.done, total=progress.total, description=words
        )
