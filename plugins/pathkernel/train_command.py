"""``pathkernel train one-shot-images``: train a network by gradient descent."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pathkernel.command_groups import SuggestingGroup
from pathkernel.jax_settings import prepare_jax
from pathkernel.output import INTERRUPTED, say
from pathkernel_core.extras import import_extra
from pathkernel_one_shot.presets import DEFAULT, PRESETS, default_folder, preset

if TYPE_CHECKING:
    from pathkernel_one_shot.training import TrainedNetwork
    from pathkernel_trained.network import NetworkShape

_EXTRA = ("jax", "jaxlib", "optax")
_preset_option = partial(click.option, show_default="the preset's")


class _Trainings(SuggestingGroup):
    kind = "training"


@click.group(cls=_Trainings, subcommand_metavar="TASK [OPTIONS]")
def train() -> None:
    """Train a network by gradient descent.

    To compute the theory with its queries and keys: pathkernel run one-shot-images --heads FILE.
    """


@train.command(name="one-shot-images")
@click.option(
    "--preset",
    "name",
    metavar="NAME",
    default=DEFAULT,
    show_default=True,
    help=f"Preset of sizes, epochs and regularisation: {', '.join(PRESETS)}.",
)
@_preset_option("--layers", type=click.IntRange(min=1), help="Attention layers L.")
@_preset_option("--heads", type=click.IntRange(min=1), help="Heads H of each layer.")
@_preset_option("--width", type=click.IntRange(min=1), help="Width N of the hidden layers.")
@_preset_option("--qk-width", type=click.IntRange(min=1), help="Width G of queries and keys.")
@_preset_option(
    "--epochs",
    type=click.FloatRange(min=0, min_open=True),
    help="Passes through all pairs of training characters, such as 10 or 0.5.  [default: the "
    "preset's]",
)
@_preset_option(
    "--weight-decay", type=click.FloatRange(min=0), help="L2 regularisation of all weights."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the initial weights and of all episodes.",
)
@click.option(
    "--test-episodes",
    type=click.IntRange(min=2),
    default=10_000,
    show_default=True,
    help="Even number of test episodes, which show unseen characters.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    show_default="one-shot-images-L-H-N-G",
    help="Folder of the training, new or to resume.",
)
def one_shot_images(
    name: str,
    epochs: float | None,
    weight_decay: float | None,
    seed: int,
    test_episodes: int,
    out: Path | None,
    **sizes: int | None,
) -> None:
    """Train on one-shot image classification in context, paper section 4.2.

    All weights are trained on episodes of Omniglot's training characters. The folder gets the
    network with the best accuracy on the validation characters, the latest state, and the learning
    curves. Running the same command again resumes the training; more epochs extend a finished one.
    """
    prepare_jax()
    from threadpoolctl import threadpool_limits

    chosen = preset(name)
    shape = replace(chosen.shape, **{size: n for size, n in sizes.items() if n is not None})
    folder = Path(default_folder(shape)) if out is None else out
    training = import_extra("pathkernel_one_shot.training", "training", "training", _EXTRA)
    from pathkernel_datasets.progress_bar import showing_progress
    from pathkernel_one_shot.training_run import TrainingSettings

    decay = chosen.weight_decay if weight_decay is None else weight_decay
    try:
        with threadpool_limits(limits=1), showing_progress() as report:
            trained = training.train_one_shot_images(
                folder,
                shape,
                epochs=chosen.epochs if epochs is None else epochs,
                seed=seed,
                test_episodes=test_episodes,
                settings=TrainingSettings(weight_decay=decay),
                report=report,
            )
    except KeyboardInterrupt:
        message = f"{_saved(folder)}; run the same command again to resume."
        say(f"\nInterrupted. {message}", err=True)
        raise SystemExit(INTERRUPTED) from None
    _say_outcome(trained, shape, test_episodes)


def _saved(folder: Path) -> str:
    """The state of an interrupted training, as a clause."""
    from pathkernel_one_shot.folder import LATEST
    from pathkernel_trained.checkpoint import read_checkpoint

    try:
        step = read_checkpoint(folder / LATEST).about["step"]
    except (OSError, ValueError):
        return "No checkpoint was saved yet"
    return f"Step {step} of the training is saved in {folder}"


def _say_outcome(trained: TrainedNetwork, shape: NetworkShape, episodes: int) -> None:
    if not trained.new_steps:
        say("The training was already complete.")
    accuracy = trained.test_accuracy
    error = math.sqrt(accuracy * (1 - accuracy) / episodes)
    say(
        f"""Network: {shape.layers} layers of {shape.heads} heads, width {shape.width}, \
width of queries and keys {shape.qk_width}; {trained.steps} steps
Validation accuracy: {trained.validation_accuracy:.1%}, the best, after step {trained.best_step}
Test accuracy: {accuracy:.1%} ± {error:.1%}, of that network on {episodes} episodes of unseen \
characters
To compute the theory: pathkernel run one-shot-images --heads {trained.checkpoint}
Results: {trained.folder.resolve()}"""
    )
