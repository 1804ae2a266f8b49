"""Learning curves: plain arrays while training, then a labelled Zarr."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pathkernel_core.contracts.analysis import Variable
from pathkernel_datasets.folder.zarr_files import write_tree
from pathkernel_datasets.variables.labelling import coordinate, label_arrays

_PREFIX = "curve."  # of the arrays in a training's file
_STEP, _VALIDATION = ("step",), ("validation_step",)
_COORDINATES = {
    "step": "number of steps of gradient descent",
    "validation_step": "number of steps of gradient descent before the validation",
}
_CURVES = (
    Variable(
        "loss", _STEP, "mean squared error, averaged over the steps since the last one listed"
    ),
    Variable(
        "seconds", _STEP, "time that the training took up to this step, validation included", "s"
    ),
    Variable(
        "validation_accuracy",
        _VALIDATION,
        "fraction of fresh episodes of the validation characters classified correctly",
    ),
    Variable(
        "validation_loss",
        _VALIDATION,
        "mean squared error on fresh episodes of the validation characters",
    ),
)
_SCALARS = (
    Variable("best_step", (), "steps of gradient descent before the best checkpoint"),
    Variable("best_validation_accuracy", (), "validation accuracy of the best checkpoint"),
    Variable(
        "test_accuracy",
        (),
        "fraction of episodes of unseen characters that the best checkpoint classifies correctly",
    ),
)


class TrainingCurves:
    """Learning curves that grow, empty or from the arrays of a training's file."""

    def __init__(self, arrays: Mapping[str, np.ndarray] | None = None):
        names = (*_COORDINATES, *(variable.name for variable in _CURVES))
        stored = arrays or {}
        self._values = {name: stored.get(_PREFIX + name, np.empty(0)).tolist() for name in names}

    def add(self, **values: float) -> None:
        """Add a step's ``loss`` and ``seconds``, or a validation, by the names of the dataset."""
        for name, value in values.items():
            self._values[name].append(value)

    def last(self, name: str) -> float:
        """Last value of a curve; NaN before the first."""
        return self._values[name][-1] if self._values[name] else float("nan")

    @property
    def best(self) -> tuple[int, float]:
        """Step of the largest validation accuracy, the earliest of equals, and the accuracy."""
        accuracies = self._values["validation_accuracy"]
        if not accuracies:
            return 0, float("nan")
        index = int(np.argmax(accuracies))
        return int(self._values["validation_step"][index]), accuracies[index]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays for a training's file."""
        return {
            _PREFIX + name: np.array(values, dtype=np.int64 if name in _COORDINATES else float)
            for name, values in self._values.items()
        }

    def save(
        self,
        path: str | os.PathLike,
        metadata: Mapping[str, Any],
        test_accuracy: float | None = None,
        **attributes: Any,
    ) -> None:
        """Write or replace a Zarr with dimensions ``step`` and ``validation_step``.

        ``metadata`` are those of a checkpoint, whose scalar settings become attributes.
        """
        arrays = {name.removeprefix(_PREFIX): array for name, array in self.to_arrays().items()}
        steps = {
            name: coordinate(name, arrays.pop(name), meaning, "1")
            for name, meaning in _COORDINATES.items()
        }
        best_step, best_accuracy = self.best
        values = arrays | {"best_step": best_step, "best_validation_accuracy": best_accuracy}
        if test_accuracy is not None:
            values["test_accuracy"] = test_accuracy
        settings = metadata["settings"].items()
        attributes = {
            "title": "Learning curves of one-shot image classification by gradient descent",
            **{name: value for name, value in settings if isinstance(value, (int, float, str))},
            "package_versions": dict(metadata["package_versions"]),
            **attributes,
        }
        write_tree(Path(path), label_arrays(values, (*_CURVES, *_SCALARS), steps, attributes))
