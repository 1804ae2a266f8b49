"""Learning curves: kept as plain arrays while training, written as a labelled Zarr store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Variable
from pathkernel_datasets.atomic import replacing_folder
from pathkernel_datasets.labelling import coordinate, labelled
from pathkernel_datasets.publishing import consolidate, write_dataset

_PREFIX = "curve."  # of the arrays of a training's file
_VARIABLES = (
    Variable(
        "loss", ("step",), "mean squared error, averaged over the steps since the last one listed"
    ),
    Variable(
        "seconds",
        ("step",),
        "time that the training took up to this step, validation included",
        "s",
    ),
    Variable(
        "validation_accuracy",
        ("validation_step",),
        "fraction of fresh episodes of the validation characters classified correctly",
    ),
    Variable(
        "validation_loss",
        ("validation_step",),
        "mean squared error on fresh episodes of the validation characters",
    ),
)
_COORDINATES = {
    "step": "number of steps of gradient descent",
    "validation_step": "number of steps of gradient descent before the validation",
}
_SCALARS = (
    Variable("best_step", (), "steps of gradient descent before the checkpoint that is kept"),
    Variable("best_validation_accuracy", (), "validation accuracy of the checkpoint that is kept"),
    Variable(
        "test_accuracy",
        (),
        "fraction of episodes of unseen characters that the kept checkpoint classifies correctly",
    ),
)


class LearningCurves:
    """Learning curves that grow.

    Parameters
    ----------
    arrays : mapping of str to array
        From :meth:`to_arrays`; others are ignored. Empty at the start of a training.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray] | None = None):
        arrays = arrays or {}
        self._values = {
            name: arrays.get(_PREFIX + name, np.empty(0)).tolist()
            for name in (*_COORDINATES, *(variable.name for variable in _VARIABLES))
        }

    @property
    def seconds(self) -> float:
        """Time that the training took so far."""
        return self._values["seconds"][-1] if self._values["seconds"] else 0.0

    @property
    def last_loss(self) -> float:
        """Loss of the last interval; NaN at the start."""
        return self._values["loss"][-1] if self._values["loss"] else float("nan")

    @property
    def last_accuracy(self) -> float:
        """Last validation accuracy; NaN before the first."""
        accuracies = self._values["validation_accuracy"]
        return accuracies[-1] if accuracies else float("nan")

    @property
    def best(self) -> tuple[int, float]:
        """Step of the largest validation accuracy, the earliest of equals, and the accuracy."""
        accuracies = self._values["validation_accuracy"]
        if not accuracies:
            return 0, float("nan")
        place = int(np.argmax(accuracies))
        return int(self._values["validation_step"][place]), accuracies[place]

    def add_interval(self, step: int, loss: float, seconds: float) -> None:
        """Add the loss averaged over the steps since the last interval's end."""
        self._add(step=step, loss=loss, seconds=seconds)

    def add_validation(self, step: int, accuracy: float, loss: float) -> None:
        """Add a validation."""
        self._add(validation_step=step, validation_accuracy=accuracy, validation_loss=loss)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays to keep in a training's file."""
        return {
            _PREFIX + name: np.array(values, dtype=np.int64 if name in _COORDINATES else float)
            for name, values in self._values.items()
        }

    def to_dataset(
        self, attributes: Mapping[str, Any], test_accuracy: float | None = None
    ) -> xr.Dataset:
        """Labelled dataset of the curves, with dimensions ``step`` and ``validation_step``.

        Parameters
        ----------
        attributes : mapping
            Attributes of the dataset.
        test_accuracy : float, optional
            Accuracy on unseen characters, once it is known.
        """
        arrays = self.to_arrays()
        best_step, best_accuracy = self.best
        scalars = {"best_step": best_step, "best_validation_accuracy": best_accuracy}
        if test_accuracy is not None:
            scalars["test_accuracy"] = test_accuracy
        values = {variable.name: arrays[_PREFIX + variable.name] for variable in _VARIABLES}
        steps = {
            name: coordinate(name, arrays[_PREFIX + name], words, "1")
            for name, words in _COORDINATES.items()
        }
        return labelled(values | scalars, (*_VARIABLES, *_SCALARS), steps, attributes)

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            self._values[name].append(value)


def save_curves(path: str | os.PathLike, curves: xr.Dataset) -> None:
    """Write curves as a Zarr store; an older one is replaced by the whole new one.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    with replacing_folder(path) as partial:
        write_dataset(curves, partial)
        consolidate(partial)
