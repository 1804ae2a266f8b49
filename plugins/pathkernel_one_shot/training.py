"""One-shot images: train a network, and test it on characters that it has never seen."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from pathkernel_core.progress import Progress, Report, silent
from pathkernel_one_shot.curves import LearningCurves, save_curves
from pathkernel_one_shot.data import omniglot_data
from pathkernel_one_shot.descent import evaluate, single_precision
from pathkernel_one_shot.episodes import drawing_coordinates, held_out_episodes, token_space
from pathkernel_one_shot.folder import BEST, CURVES, LATEST, writing
from pathkernel_one_shot.omniglot import DRAWINGS, SPLITS, split_characters
from pathkernel_one_shot.presets import DEFAULT, default_folder, preset
from pathkernel_one_shot.training_run import (
    TrainingPlan,
    TrainingSettings,
    carry_out,
    curve_attributes,
)
from pathkernel_trained.checkpoint import Checkpoint, read_checkpoint
from pathkernel_trained.network import NetworkShape

TEST_EPISODES = 10_000


@dataclass(frozen=True)
class TrainedNetwork:
    """Outcome of a training.

    Attributes
    ----------
    folder : Path
        Folder of the training.
    checkpoint : Path
        File of the network with the largest validation accuracy.
    steps : int
        Steps of gradient descent in all.
    made : int
        Steps that this call made; 0 if the training was complete.
    best_step : int
        Steps after which the kept network was validated.
    validation_accuracy : float
        Its accuracy on the validation characters, 0 to 1.
    test_accuracy : float
        Its accuracy on the characters of the test split, 0 to 1.
    """

    folder: Path
    checkpoint: Path
    steps: int
    made: int
    best_step: int
    validation_accuracy: float
    test_accuracy: float


def train_one_shot_images(
    folder: str | os.PathLike | None = None,
    network: NetworkShape | str = DEFAULT,
    *,
    epochs: float | None = None,
    seed: int = 0,
    test_episodes: int = TEST_EPISODES,
    settings: TrainingSettings | None = None,
    report: Report = silent,
) -> TrainedNetwork:
    """Train a network on Omniglot's training characters and test it on unseen ones.

    Goes on where an earlier run in the same folder stopped; see
    :func:`pathkernel_one_shot.training_run.train`, which also lists the files.

    Parameters
    ----------
    folder : path, optional
        By default ``one-shot-images-L-H-N-G`` in the working directory.
    network : NetworkShape or str
        Sizes, or the name of a preset, see :mod:`pathkernel_one_shot.presets`.
    epochs : float, optional
        Passes through all pairs of training characters; by default the preset's, or 10.
    seed : int
        Of the initial weights and of all episodes.
    test_episodes : int
        Even number of episodes of the test.
    settings : TrainingSettings, optional
        By default the paper's, with the weight decay of the preset.
    report : callable
        Called with a Progress after every step.

    Returns
    -------
    TrainedNetwork

    Raises
    ------
    StoreError
        If the folder holds another training, is no folder of a training, or cannot be written, or
        another process trains there.
    DivergedError
        If the loss or the weights are no longer finite; the last checkpoint is kept.
    UnknownNameError
        If there is no such preset.
    pathkernel_one_shot.image_sources.ImageDataError
        If image data are missing or damaged, or cannot be downloaded.
    ValueError
        If a number is out of range, or a checkpoint is damaged.
    """
    if isinstance(network, str):
        chosen = preset(network)
        shape, epochs = chosen.shape, chosen.epochs if epochs is None else epochs
        settings = settings or TrainingSettings(weight_decay=chosen.weight_decay)
    else:
        shape, epochs = network, 10 if epochs is None else epochs
    _check_episodes("test_episodes", test_episodes)
    folder = Path(default_folder(shape) if folder is None else folder)
    plan = TrainingPlan(shape, omniglot_data(), epochs, seed, settings or TrainingSettings())
    with writing(folder):  # until the test is in the curves
        made = carry_out(plan, folder, report)
        latest = read_checkpoint(folder / LATEST)
        curves = LearningCurves(latest.further)
        best_step, validation_accuracy = curves.best
        steps = latest.about["step"]
        report(Progress(steps, steps, "testing", {"accuracy": validation_accuracy}))
        accuracy = one_shot_accuracy(read_checkpoint(folder / BEST), "test", test_episodes, seed)
        attributes = curve_attributes(latest.about) | {"test_episodes": test_episodes}
        save_curves(folder / CURVES, curves.to_dataset(attributes, accuracy))
    return TrainedNetwork(
        folder, folder / BEST, steps, made, best_step, validation_accuracy, accuracy
    )


def one_shot_accuracy(
    checkpoint: Checkpoint, split: str = "test", episodes: int = TEST_EPISODES, seed: int = 0
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
    _check_episodes("episodes", episodes)
    if not np.isclose(checkpoint.scale, checkpoint.shape.scale, rtol=1e-6):
        raise ValueError(f"scale of the scores must be 1/√G, but is {checkpoint.scale:g}")
    characters = split_characters()[split]
    drawn = held_out_episodes(len(characters), episodes, seed)
    # only the drawings that are shown
    images, places = np.unique(drawn.images, return_inverse=True)
    table = drawing_coordinates(
        [(characters[image // DRAWINGS], int(image % DRAWINGS)) for image in images]
    )
    drawn = dataclasses.replace(drawn, images=places.reshape(drawn.images.shape))
    with jax.enable_x64(False):
        space = jax.tree.map(single_precision, token_space(checkpoint.label_vectors))
        weights = jax.tree.map(single_precision, dict(checkpoint.weights))
        accuracy, _ = evaluate(weights, space, single_precision(table), drawn)
    return accuracy


def _check_episodes(name: str, episodes: int) -> None:
    if episodes < 2 or episodes % 2:
        raise ValueError(f"{name} must be even and at least 2, but is {episodes}")
