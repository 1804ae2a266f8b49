"""A training in a folder, new or resumed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core.system.errors import PathkernelError
from pathkernel_core.system.progress import Progress, Report, silent
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.study.identity import versions
from pathkernel_one_shot.curves import TrainingCurves
from pathkernel_one_shot.data import TrainingData
from pathkernel_one_shot.descent import (
    evaluate,
    initial_state,
    make_optimiser,
    single_precision,
    take_step,
)
from pathkernel_one_shot.episodes import TrainingEpisodes, token_space, validation_episodes
from pathkernel_one_shot.folder import BEST, CURVES, LATEST, latest_checkpoint, locked_folder
from pathkernel_one_shot.settings import Training
from pathkernel_trained.checkpoint import Checkpoint, save_checkpoint
from pathkernel_trained.network import initial_weights

_SAVE_SECONDS = 20.0  # between checkpoints, which are saved at the end of an interval
_OPTIMISER = "optimiser"  # prefix of the arrays of its state
_RECORDED_VERSIONS = ("pathkernel", "numpy", "jax", "jaxlib", "optax")


class DivergedError(PathkernelError, RuntimeError):
    """The loss or the weights are no longer finite."""


@dataclass(frozen=True)
class TrainingPlan:
    """Settings and data of a training.

    Attributes
    ----------
    settings : Training
    data : TrainingData

    Raises
    ------
    ValueError
        If an epoch has not one batch.
    """

    settings: Training
    data: TrainingData

    def __post_init__(self):
        _ = self.episodes  # which checks the batch

    @cached_property
    def episodes(self) -> TrainingEpisodes:
        """Episodes of all steps."""
        settings = self.settings
        return TrainingEpisodes(self.data.train_characters, settings.batch, settings.seed)

    @property
    def total(self) -> int:
        """Number of steps."""
        return max(1, round(self.settings.epochs * self.episodes.steps_per_epoch))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Settings that fix the weights after any step, as JSON holds them."""
        settings = asdict(self.settings)
        for name in ("epochs", "test_episodes"):
            del settings[name]
        return {
            **settings,
            "label_vectors": self.data.label_vectors.tolist(),
            "data": dict(self.data.provenance),
        }


def train(folder: str | os.PathLike, plan: TrainingPlan, report: Report = silent) -> int:
    """Train a network by gradient descent, or resume an interrupted training; return the new steps.

    The same call gives the same weights bit for bit on the same machine, however often it is
    interrupted or killed. More epochs extend a finished training; its end was an additional
    validation, and the network after that step may stay the best. Computes in float32.

    Parameters
    ----------
    folder : path
        Folder for ``network.safetensors``, the checkpoint with the largest validation accuracy;
        ``latest.safetensors``, to resume from; and ``curves.zarr``, the learning curves.
    plan : TrainingPlan
    report : callable
        Called with a Progress after every step.

    Returns
    -------
    int
        Steps of this call; 0 if the training was complete.

    Raises
    ------
    StudyError
        If the folder holds another training, is no folder of a training, or cannot be written, or
        another process trains there.
    DivergedError
        If the loss or the weights are no longer finite; the last checkpoint remains.
    ValueError
        If a checkpoint is damaged.
    """
    with locked_folder(Path(folder)):
        return train_in(Path(folder), plan, report)


def train_in(folder: Path, plan: TrainingPlan, report: Report = silent) -> int:
    """Train as :func:`train` does, in a folder that the caller has locked."""
    checkpoint = latest_checkpoint(folder, plan.identity, plan.total)
    with jax.enable_x64(False):  # whether JAX computes in double precision elsewhere or not
        return _Training(folder, plan, checkpoint).run(report)


class _Training:
    """State of a training, and its files in the folder."""

    def __init__(self, folder: Path, plan: TrainingPlan, checkpoint: Checkpoint | None):
        data, settings = plan.data, plan.settings
        self._folder, self._plan = folder, plan
        self._space = jax.tree.map(single_precision, token_space(data.label_vectors))
        self._train = single_precision(data.train)
        self._validation = single_precision(data.validation)
        self._optimiser = make_optimiser(settings.learning_rate, settings.weight_decay)
        if checkpoint is None:
            weights = initial_weights(settings.shape, data.label_vectors.shape[1], settings.seed)
            self._state = initial_state(weights, self._optimiser)
            self._step, self._curves, seconds = 0, TrainingCurves(), 0.0
        else:
            state = initial_state(checkpoint.weights, self._optimiser)
            optimiser = _from_arrays(state.optimiser, checkpoint.further)
            self._state = state._replace(optimiser=optimiser)
            self._step = checkpoint.about["step"]
            self._curves = TrainingCurves(checkpoint.further)
            seconds = self._curves.last("seconds")
        self._first = self._step
        self._started = time.monotonic() - seconds
        self._compiled = math.inf  # when the first step ended, which is slow

    def run(self, report: Report) -> int:
        """Train up to the last step; return the number of new steps."""
        total, settings = self._plan.total, self._plan.settings
        saved = time.monotonic()
        report(self._progress("starting"))
        while self._step < total:
            ends = (
                _next(self._step, settings.validate_every),
                _next(self._step, settings.interval),
            )
            self._descend(min(total, *ends), report)
            validated = self._step == total or self._step % settings.validate_every == 0
            if validated:
                report(self._progress("validating"))
                self._validate()
            if validated or time.monotonic() - saved > _SAVE_SECONDS:
                arrays = {**_to_arrays(self._state.optimiser), **self._curves.to_arrays()}
                save_checkpoint(self._folder / LATEST, self._checkpoint(arrays))
                self._save_curves()
                saved = time.monotonic()
        if self._step == self._first:  # a kill may have come between the checkpoint and the curves
            self._save_curves()
        return self._step - self._first

    def _descend(self, stop: int, report: Report) -> None:
        """Take the steps of an interval."""
        losses = []
        while self._step < stop:
            batch = self._plan.episodes.batch_of(self._step)
            self._state, loss = take_step(
                self._state,
                self._space,
                self._train,
                batch.images.astype(np.int32),
                batch.first_labels.astype(np.float32),
                batch.labels.astype(np.float32),
                optimiser=self._optimiser,
            )
            losses.append(float(loss))
            self._step += 1
            self._compiled = min(self._compiled, time.monotonic())
            report(self._progress("training"))
        mean = float(np.mean(losses))
        # the loss of a step is that of the weights before it
        if not (np.isfinite(mean) and _is_finite(self._state.weights)):
            raise DivergedError(
                f"the loss or a weight is no longer finite after step {self._step}: the training "
                "has diverged. Train into another folder with a smaller learning rate"
            )
        self._curves.add(step=self._step, loss=mean, seconds=time.monotonic() - self._started)

    def _validate(self) -> None:
        data, settings = self._plan.data, self._plan.settings
        episodes = validation_episodes(
            data.validation_characters, settings.validation_episodes, settings.seed, self._step
        )
        accuracy, loss = evaluate(self._state.weights, self._space, self._validation, episodes)
        self._curves.add(
            validation_step=self._step, validation_accuracy=accuracy, validation_loss=loss
        )
        if self._curves.best[0] == self._step:
            save_checkpoint(self._folder / BEST, self._checkpoint({}))

    def _save_curves(self) -> None:
        self._curves.save(self._folder / CURVES, self._metadata())

    def _checkpoint(self, arrays: Mapping[str, np.ndarray]) -> Checkpoint:
        weights = {name: np.asarray(array) for name, array in self._state.weights.items()}
        return Checkpoint(weights, self._plan.data.label_vectors, self._metadata(), arrays)

    def _metadata(self) -> dict[str, Any]:
        accuracy = self._curves.last("validation_accuracy")
        return {
            "step": self._step,
            "epoch": self._step / self._plan.episodes.steps_per_epoch,
            "validation_accuracy": None if np.isnan(accuracy) else accuracy,
            "settings": self._plan.identity,
            "package_versions": versions(_RECORDED_VERSIONS),
        }

    def _progress(self, doing: str) -> Progress:
        steps, seconds = self._step - self._first - 1, time.monotonic() - self._compiled
        figures = {
            "loss": self._curves.last("loss"),
            "accuracy": self._curves.last("validation_accuracy"),
            "steps/s": steps / seconds if steps > 0 else np.nan,
        }
        return Progress(self._step, self._plan.total, doing, figures)


def _next(step: int, every: int) -> int:
    """Smallest multiple above a step."""
    return (step // every + 1) * every


@jax.jit
def _is_finite(weights: Any) -> jax.Array:
    return jnp.array([jnp.isfinite(array).all() for array in jax.tree.leaves(weights)]).all()


def _to_arrays(state: Any) -> dict[str, np.ndarray]:
    """Arrays of a tree, named by their paths in it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {_OPTIMISER + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _from_arrays(template: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The template's tree with the arrays of the paths in it."""

    def read_leaf(path: Any, leaf: jax.Array) -> jax.Array:
        name = _OPTIMISER + jax.tree_util.keystr(path)
        if name not in arrays or arrays[name].shape != leaf.shape:
            raise StudyError(
                f"{LATEST} lacks {name}, or its shape differs: this version of optax stores its "
                "state in another way. Resume with the version in the file's header, or train "
                "again in another folder"
            )
        return jnp.asarray(arrays[name], dtype=leaf.dtype)

    return jax.tree_util.tree_map_with_path(read_leaf, template)
