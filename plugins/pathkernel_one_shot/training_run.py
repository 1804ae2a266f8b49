"""A training in a folder of its own, or going on where an earlier run stopped."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core.errors import PathkernelError
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.identity import versions
from pathkernel_one_shot.curves import LearningCurves, save_curves
from pathkernel_one_shot.data import TrainingData
from pathkernel_one_shot.descent import (
    TrainingState,
    evaluate,
    initial_state,
    make_optimiser,
    single_precision,
    take_step,
)
from pathkernel_one_shot.episodes import TrainingEpisodes, token_space, validation_episodes
from pathkernel_one_shot.folder import BEST, CURVES, LATEST, held_training, writing
from pathkernel_trained.checkpoint import Checkpoint, save_checkpoint
from pathkernel_trained.network import NetworkShape, initial_weights

_SAVE_SECONDS = 20.0  # what a kill may cost, to the next end of an interval
_PATHS = 4096  # whose values alone take gigabytes in a step
_OPTIMISER = "optimiser"  # prefix of the arrays of its state
_RECORDED_VERSIONS = ("pathkernel", "numpy", "jax", "jaxlib", "optax")


class DivergedError(PathkernelError, RuntimeError):
    """The loss or the weights are no longer finite."""


@dataclass(frozen=True)
class TrainingSettings:
    """How to descend; the defaults are the paper's.

    Attributes
    ----------
    learning_rate : float
        Constant step size of Adam.
    weight_decay : float
        Its product with the weights is added to the gradient (L2 regularisation).
    batch : int
        Episodes of a step.
    interval : int
        Steps over which the loss is averaged for the learning curve.
    validate_every : int
        Steps between validations. The end of a run is validated too.
    validation_episodes : int
        Even number of fresh episodes of each validation.
    """

    learning_rate: float = 3e-4
    weight_decay: float = 5e-5
    batch: int = 128
    interval: int = 100
    validate_every: int = 1000
    validation_episodes: int = 12_928

    def __post_init__(self):
        for name in ("batch", "interval", "validate_every", "validation_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but is {getattr(self, name)}")
        if self.validation_episodes % 2:
            raise ValueError(f"validation_episodes must be even, but is {self.validation_episodes}")
        if not 0 < self.learning_rate < np.inf:
            raise ValueError(f"learning_rate must be positive, but is {self.learning_rate}")
        if not 0 <= self.weight_decay < np.inf:
            raise ValueError(f"weight_decay must not be negative, but is {self.weight_decay}")


@dataclass(frozen=True)
class TrainingPlan:
    """What is to be trained on what, and for how long; arguments are those of :func:`train`."""

    shape: NetworkShape
    data: TrainingData
    epochs: float
    seed: int
    settings: TrainingSettings

    def __post_init__(self):
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, but is {self.seed}")
        if not 0 < self.epochs < np.inf:
            raise ValueError(f"epochs must be positive, but is {self.epochs}")
        _ = self.episodes  # which checks the batch
        paths = math.prod(self.shape.heads_per_layer)
        if paths > _PATHS:
            raise ValueError(
                f"a network of {self.shape.layers} layers of {self.shape.heads} heads has {paths} "
                f"paths, more than the {_PATHS} that can be trained path by path; take fewer "
                "layers or heads"
            )

    @cached_property
    def episodes(self) -> TrainingEpisodes:
        """Episodes of all steps."""
        return TrainingEpisodes(self.data.train_characters, self.settings.batch, self.seed)

    @property
    def total(self) -> int:
        """Steps in all."""
        return max(1, round(self.epochs * self.episodes.steps_per_epoch))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What fixes the weights after any step, as JSON holds it."""
        return {
            **asdict(self.shape),
            "seed": self.seed,
            **asdict(self.settings),
            "label_vectors": self.data.label_vectors.tolist(),
            "data": dict(self.data.provenance),
        }


def train(
    folder: str | os.PathLike,
    shape: NetworkShape,
    data: TrainingData,
    *,
    epochs: float = 10,
    seed: int = 0,
    settings: TrainingSettings | None = None,
    report: Report = silent,
) -> int:
    """Train a network by gradient descent, or go on where an earlier run stopped.

    The same call gives the same weights bit for bit on the same machine, however often it is
    interrupted or killed. More ``epochs`` go on with a finished training; where it ended, it was
    validated out of turn, and the network after that step may stay the best. Computes in float32.

    Parameters
    ----------
    folder : path
        Folder for ``network.safetensors``, the checkpoint with the largest validation accuracy;
        ``latest.safetensors``, to go on from; and ``curves.zarr``, the learning curves.
    shape : NetworkShape
    data : TrainingData
    epochs : float
        Passes through all pairs of training characters.
    seed : int
        Of the initial weights and of all episodes.
    settings : TrainingSettings, optional
        By default the paper's.
    report : callable
        Called with a Progress after every step.

    Returns
    -------
    int
        Steps made by this call; 0 if the training was complete.

    Raises
    ------
    StoreError
        If the folder holds another training, is no folder of a training, or cannot be written, or
        another process trains there.
    DivergedError
        If the loss or the weights are no longer finite; the last checkpoint is kept.
    ValueError
        If a number is out of range, or a checkpoint is damaged.
    """
    plan = TrainingPlan(shape, data, epochs, seed, settings or TrainingSettings())
    with writing(Path(folder)):
        return carry_out(plan, Path(folder), report)


def carry_out(plan: TrainingPlan, folder: Path, report: Report = silent) -> int:
    """Train as :func:`train` does, in a folder that the caller holds by ``folder.writing``.

    Returns
    -------
    int
        Steps made by this call.
    """
    held = held_training(folder, plan.identity, plan.total)
    with jax.enable_x64(False):  # whether JAX computes in double precision elsewhere or not
        return _Training(folder, plan, held).run_to(plan.total, report)


@dataclass
class _Clock:
    """Times a run: in all, and its steps alone."""

    before: float  # seconds of earlier runs
    started: float = field(default_factory=time.monotonic)
    saved: float = field(default_factory=time.monotonic)
    stepping: float = 0.0

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started


class _Training:
    """State of a training, and how it goes into the folder."""

    def __init__(self, folder: Path, plan: TrainingPlan, held: Checkpoint | None):
        shape, data, settings, episodes = plan.shape, plan.data, plan.settings, plan.episodes
        self._folder, self._data, self._settings = folder, data, settings
        self._episodes, self._identity = episodes, plan.identity
        self._space = jax.tree.map(single_precision, token_space(data.label_vectors))
        self._train, self._validation = (
            single_precision(data.train),
            single_precision(data.validation),
        )
        self._optimiser = make_optimiser(settings.learning_rate, settings.weight_decay)
        token_width = data.label_vectors.shape[1]
        weights = held.weights if held else initial_weights(shape, token_width, episodes.seed)
        self._state = initial_state(weights, self._optimiser)
        self._step, self._curves = 0, LearningCurves()
        if held:
            self._step, self._curves = held.about["step"], LearningCurves(held.further)
            optimiser = _from_arrays(self._state.optimiser, held.further)
            self._state = TrainingState(self._state.weights, optimiser)

    def run_to(self, total: int, report: Report) -> int:
        """Train up to so many steps in all; returns how many were made now."""
        first = self._step
        clock = _Clock(self._curves.seconds)
        every, interval = self._settings.validate_every, self._settings.interval
        report(self._progress(total, first, clock, "starting"))
        while self._step < total:
            stop = min(total, _next(self._step, every), _next(self._step, interval))
            self._interval(stop, total, first, clock, report)
            validated = self._step == total or self._step % every == 0
            if validated:
                report(self._progress(total, first, clock, "validating"))
                self._validate()
            if validated or time.monotonic() - clock.saved > _SAVE_SECONDS:
                self._save()
                clock.saved = time.monotonic()
        if self._step == first:  # a kill may have come between the checkpoint and the curves
            self._write_curves()
        return self._step - first

    def _interval(self, stop: int, total: int, first: int, clock: _Clock, report: Report) -> None:
        losses = []
        for step in range(self._step, stop):
            start = time.monotonic()
            batch = self._episodes.at(step)
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
            self._step = step + 1
            if step > first:  # the first step is slow: it is compiled
                clock.stepping += time.monotonic() - start
            report(self._progress(total, first, clock, "training"))
        mean = float(np.mean(losses))
        # the loss of a step is that of the weights before it
        if not (np.isfinite(mean) and _finite(self._state.weights)):
            raise DivergedError(
                f"the loss or a weight is no longer finite after step {self._step}: the training "
                "has diverged. Train into another folder with a smaller learning rate"
            )
        self._curves.add_interval(self._step, mean, clock.seconds())

    def _validate(self) -> None:
        episodes = validation_episodes(
            self._data.validation_characters,
            self._settings.validation_episodes,
            self._episodes.seed,
            self._step,
        )
        accuracy, loss = evaluate(self._state.weights, self._space, self._validation, episodes)
        self._curves.add_validation(self._step, accuracy, loss)
        if self._curves.best[0] == self._step:
            save_checkpoint(self._folder / BEST, self._checkpoint({}))

    def _save(self) -> None:
        further = {**_to_arrays(self._state.optimiser), **self._curves.to_arrays()}
        save_checkpoint(self._folder / LATEST, self._checkpoint(further))
        self._write_curves()

    def _write_curves(self) -> None:
        save_curves(self._folder / CURVES, self._curves.to_dataset(curve_attributes(self._about())))

    def _checkpoint(self, further: Mapping[str, np.ndarray]) -> Checkpoint:
        weights = {name: np.asarray(array) for name, array in self._state.weights.items()}
        return Checkpoint(weights, self._data.label_vectors, self._about(), further)

    def _about(self) -> dict[str, Any]:
        accuracy = self._curves.last_accuracy
        return {
            "step": self._step,
            "epoch": self._step / self._episodes.steps_per_epoch,
            "validation_accuracy": None if np.isnan(accuracy) else accuracy,
            "settings": dict(self._identity),
            "package_versions": versions(_RECORDED_VERSIONS),
        }

    def _progress(self, total: int, first: int, clock: _Clock, doing: str) -> Progress:
        made = self._step - first - 1
        figures = {
            "loss": self._curves.last_loss,
            "accuracy": self._curves.last_accuracy,
            "steps/s": made / clock.stepping if made > 0 else np.nan,
        }
        return Progress(self._step, total, doing, figures)


def curve_attributes(about: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of the learning curves' dataset, from what a checkpoint tells about itself."""
    settings = {
        name: value
        for name, value in about["settings"].items()
        if isinstance(value, (int, float, str))
    }
    return {
        "title": "Learning curves of one-shot image classification by gradient descent",
        **settings,
        "package_versions": dict(about["package_versions"]),
    }


def _next(step: int, every: int) -> int:
    """Smallest multiple above a step."""
    return (step // every + 1) * every


@jax.jit
def _finite(weights: Any) -> jax.Array:
    return jnp.array([jnp.isfinite(array).all() for array in jax.tree.leaves(weights)]).all()


def _to_arrays(state: Any) -> dict[str, np.ndarray]:
    """Arrays of a tree, named by their places in it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {_OPTIMISER + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _from_arrays(template: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Put a tree together; the template says where each array goes."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(template)
    found = []
    for path, leaf in leaves:
        name = _OPTIMISER + jax.tree_util.keystr(path)
        if name not in arrays or arrays[name].shape != leaf.shape:
            raise StoreError(
                f"{LATEST} lacks {name}, or its shape is another: the optimiser's library stores "
                "its state in another way by now. Go on with the version that the file names in "
                "its header, or train anew in another folder"
            )
        found.append(jnp.asarray(arrays[name], dtype=leaf.dtype))
    return jax.tree_util.tree_unflatten(tree, found)
