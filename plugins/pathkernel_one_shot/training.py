"""One-shot images: train a network, and test it on characters that it has never seen."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pathkernel_core.system.progress import Progress, Report, silent
from pathkernel_one_shot.curves import TrainingCurves
from pathkernel_one_shot.data import omniglot_data, split_coordinates
from pathkernel_one_shot.descent import evaluate, single_precision
from pathkernel_one_shot.episodes import held_out_episodes, token_space
from pathkernel_one_shot.folder import BEST, CURVES, LATEST, locked_folder
from pathkernel_one_shot.omniglot import DRAWINGS, SPLITS
from pathkernel_one_shot.settings import DEFAULT, Training, preset
from pathkernel_one_shot.tokens import check_episodes
from pathkernel_one_shot.training_run import TrainingPlan, train_in
from pathkernel_trained.checkpoint import Checkpoint, read_checkpoint


@dataclass(frozen=True)
class TrainedNetwork:
    """Outcome of a training.

    Attributes
    ----------
    folder : Path
    checkpoint : Path
        File of the best network, that with the largest validation accuracy.
    steps : int
        Steps of gradient descent in all.
    new_steps : int
        Steps of this call; 0 if the training was complete.
    best_step : int
        Steps before the best network.
    validation_accuracy, test_accuracy : float
        Accuracies of the best network on validation characters and on unseen ones, 0 to 1.
    """

    folder: Path
    checkpoint: Path
    steps: int
    new_steps: int
    best_step: int
    validation_accuracy: float
    test_accuracy: float


def train_one_shot_images(
    folder: str | os.PathLike | None = None,
    network: Training | str = DEFAULT,
    *,
    report: Report = silent,
    **changes: Any,
) -> TrainedNetwork:
    """Train a network on Omniglot's training characters and test it on unseen ones.

    Resumes an interrupted training in the same folder; see
    :func:`pathkernel_one_shot.training_run.train` for its files and errors.

    Parameters
    ----------
    folder : path, optional
        By default ``one-shot-images-L-H-N-G`` in the working directory.
    network : Training or str
        Settings, or the name of a preset, see :mod:`pathkernel_one_shot.settings`.
    report : callable
        Called with a Progress after every step.
    **changes
        Settings that differ, such as ``epochs`` or ``seed``: fields of
        :class:`pathkernel_one_shot.settings.Training`.

    Raises
    ------
    UnknownNameError
        If there is no such preset.
    ValueError, TypeError
        If a setting is out of range, or has another type.
    pathkernel_one_shot.image_sources.ImageDataError
        If image data are missing or damaged, or cannot be downloaded.
    """
    settings = preset(network) if isinstance(network, str) else network
    settings = replace(settings, **changes)
    folder = Path(settings.folder if folder is None else folder)
    plan, test_episodes = TrainingPlan(settings, omniglot_data()), settings.test_episodes
    with locked_folder(folder):  # until the test is in the curves
        new_steps = train_in(folder, plan, report)
        latest = read_checkpoint(folder / LATEST)
        curves = TrainingCurves(latest.further)
        best_step, validation_accuracy = curves.best
        steps = latest.about["step"]
        report(Progress(steps, steps, "testing", {"accuracy": validation_accuracy}))
        accuracy = one_shot_accuracy(
            read_checkpoint(folder / BEST), "test", test_episodes, settings.seed
        )
        curves.save(
            folder / CURVES, latest.about, test_accuracy=accuracy, test_episodes=test_episodes
        )
    return TrainedNetwork(
        folder, folder / BEST, steps, new_steps, best_step, validation_accuracy, accuracy
    )


def one_shot_accuracy(
    checkpoint: Checkpoint, split: str = "test", episodes: int = 10_000, seed: int = 0
) -> float:
    """Accuracy of a trained network on episodes of a split of Omniglot's characters.

    Parameters
    ----------
    checkpoint : Checkpoint
        From :func:`pathkernel_trained.checkpoint.read_checkpoint`.
    split : str
        ``"train"`` (1028 characters), ``"val"`` (172) or ``"test"`` (423).
    episodes : int
        Even number of episodes, half of each label.
    seed : int
        Seed of the episodes.

    Returns
    -------
    float
        Fraction of the episodes, 0 to 1, in which output and label have the same sign; its standard
        error is √(p(1 − p)/episodes).

    Raises
    ------
    ValueError
        If there is no such split or the number of episodes is odd.
    pathkernel_one_shot.image_sources.ImageDataError
        If image data are missing or damaged, or cannot be downloaded.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, but is {split!r}")
    check_episodes("episodes", episodes)
    if not np.isclose(checkpoint.scale, checkpoint.shape.scale, rtol=1e-6):
        raise ValueError(f"scale of the scores must be 1/√G, but is {checkpoint.scale:g}")
    table = split_coordinates(split)
    drawn = held_out_episodes(len(table) // DRAWINGS, episodes, seed)
    with jax.enable_x64(False):
        space = jax.tree.map(single_precision, token_space(checkpoint.label_vectors))
        weights = jax.tree.map(single_precision, dict(checkpoint.weights))
        accuracy, _ = evaluate(weights, space, single_precision(table), drawn)
    return accuracy
