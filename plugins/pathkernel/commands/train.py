"""``pathkernel train one-shot-images``: train a network by gradient descent."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pathkernel.commands.groups import Command, SuggestingGroup
from pathkernel.commands.options import help_of, options_of
from pathkernel.commands.output import INTERRUPTED, say
from pathkernel.jax_settings import prepare_jax
from pathkernel_core.system.extras import import_extra
from pathkernel_one_shot.settings import DEFAULT, OF_PRESETS, PRESETS, Training, preset

if TYPE_CHECKING:
    from pathkernel_one_shot.training import TrainedNetwork

_EXTRA = ("jax", "jaxlib", "optax")


class _Trainings(SuggestingGroup):
    kind = "training"


@click.group(cls=_Trainings, subcommand_metavar="TASK [OPTIONS]")
def train() -> None:
    """Train a network by gradient descent.

    To compute the theory with its queries and keys: pathkernel run one-shot-images --heads FILE.
    """


def _train(name: str, out: Path | None, **given: Any) -> None:
    prepare_jax()
    from threadpoolctl import threadpool_limits

    changes = {setting: value for setting, value in given.items() if value is not None}
    settings = replace(preset(name), **changes)
    folder = Path(settings.folder) if out is None else out
    training = import_extra("pathkernel_one_shot.training", "training", "training", _EXTRA)
    from pathkernel_datasets.run.progress_bar import showing_progress

    try:
        with threadpool_limits(limits=1), showing_progress() as report:
            trained = training.train_one_shot_images(folder, settings, report=report)
    except KeyboardInterrupt:
        message = f"{_describe_saved(folder)}; run the same command again to resume."
        say(f"\nInterrupted. {message}", err=True)
        raise SystemExit(INTERRUPTED) from None
    _say_outcome(trained, settings)


train.add_command(
    Command(
        "one-shot-images",
        callback=_train,
        params=[
            click.Option(
                ["--preset", "name"],
                metavar=f"[{'|'.join(PRESETS)}]",
                default=DEFAULT,
                show_default=True,
                help="Preset of sizes, epochs and regularisation.",
            ),
            *options_of(Training, defaults=dict.fromkeys(OF_PRESETS, "the preset's")),
            click.Option(
                ["--out"],
                type=click.Path(path_type=Path),
                metavar="DIR",
                help="Folder of the training, new or to resume.  [default: "
                "one-shot-images-L-H-N-G]",
            ),
        ],
        help=help_of(Training),
    )
)


def _describe_saved(folder: Path) -> str:
    """The state of an interrupted training, as a clause."""
    from pathkernel_one_shot.folder import LATEST
    from pathkernel_trained.checkpoint import read_checkpoint

    try:
        step = read_checkpoint(folder / LATEST).about["step"]
    except (OSError, ValueError):
        return "No checkpoint was saved yet"
    return f"Step {step} of the training is saved in {folder}"


def _say_outcome(trained: TrainedNetwork, settings: Training) -> None:
    if not trained.new_steps:
        say("The training was already complete.")
    accuracy = trained.test_accuracy
    episodes = settings.test_episodes
    error = math.sqrt(accuracy * (1 - accuracy) / episodes)
    say(
        f"""Network: {settings.layers} layers of {settings.heads} heads, width {settings.width}, \
width of queries and keys {settings.qk_width}; {trained.steps} steps
Validation accuracy: {trained.validation_accuracy:.1%}, the best, after step {trained.best_step}
Test accuracy: {accuracy:.1%} ± {error:.1%}, of that network on {episodes} episodes of unseen \
characters
To compute the theory: pathkernel run one-shot-images --heads {trained.checkpoint}
Results: {trained.folder.resolve()}"""
    )
