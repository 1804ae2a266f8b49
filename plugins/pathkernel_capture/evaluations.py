"""A measure of a live model with sets of heads off, each set evaluated once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from pathkernel_capture.families import attention_modules
from pathkernel_capture.removal import heads_off
from pathkernel_capture.state import evaluating
from pathkernel_datasets.atomic import replacing
from pathkernel_trained.heads import Head, every_head

Measure = Callable[[str], Any]
"""Takes the name of a set of examples, ``"validation"`` or ``"test"``, runs the model as it stands
on them, and gives the loss of every example, shape (P,); or (P, C) for C draws, readouts or
outputs that share the forward pass. Or it gives a mapping of such arrays by their names: first
the loss, which is better the smaller it is, then what is better the larger it is, such as
``{"loss": …, "accuracy": …}``. Tensors or arrays."""

_WRITE_EVERY = 60.0  # seconds
_ROUNDING = 0.01  # mean change of values by another number of threads, at most; relative


class Evaluations:
    """Values of a measure for every example, with heads of a model off.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`pathkernel_capture.heads_off`. It is measured in evaluation mode and without
        gradients.
    measure : callable
        See :data:`Measure`.
    kept : path, optional
        File (.npz) that holds the values, so that an interrupted run goes on where it stopped.

    Attributes
    ----------
    heads : tuple of (layer, head)
        All heads of the model.
    quantities : tuple of str
        What is measured, once it was.
    passes : int
        How often the measure was called.
    """

    def __init__(self, model: nn.Module, measure: Measure, kept: str | os.PathLike | None = None):
        self._model, self._measure = model, measure
        self.heads = every_head([attention.heads for attention in attention_modules(model)])
        self.quantities: tuple[str, ...] = ()
        self.passes = 0
        self._known: dict[str, dict[str, np.ndarray]] = {}  # of examples, then of heads off
        self._file, self._unchecked = None if kept is None else Path(kept), set[str]()
        if self._file is not None and self._file.exists():
            self._read(self._file)
        self._written = time.monotonic()

    def __call__(self, examples: str, off: Iterable[Head] = ()) -> np.ndarray:
        """Values without some heads, (Q, P, C): quantities, examples, and draws.

        Raises
        ------
        ValueError
            If the measure gives other shapes than it should, values that are not finite, or
            values that the file contradicts.
        """
        off = sorted(set(off))
        name = " ".join("{}-{}".format(*head) for head in off)
        known = self._known.setdefault(examples, {})
        if examples in self._unchecked:
            self._check(examples)
        if name not in known:
            known[name] = self._measured(examples, off)
            if time.monotonic() - self._written > _WRITE_EVERY:
                self.write()
        return known[name]

    def write(self) -> None:
        """Bring the file up to date, if there is one."""
        if self._file is None or not any(self._known.values()):
            return
        arrays = {"quantities": np.array(self.quantities)}
        for examples, known in self._known.items():
            if not known:  # stopped in the first measure of these examples
                continue
            arrays[f"off {examples}"] = np.array(list(known))
            arrays[f"values {examples}"] = np.stack(list(known.values()))
        with replacing(self._file) as partial, open(partial, "wb") as stream:
            np.savez_compressed(stream, **arrays)
        self._written = time.monotonic()

    def _read(self, file: Path) -> None:
        with np.load(file, allow_pickle=False) as arrays:
            self.quantities = tuple(arrays["quantities"].tolist())
            for key in arrays.files:
                if key.startswith("off "):
                    examples = key.removeprefix("off ")
                    values = arrays[f"values {examples}"]
                    self._known[examples] = dict(zip(arrays[key].tolist(), values))
        self._unchecked = set(self._known)

    def _check(self, examples: str) -> None:
        """Compare the model with the one of which the file holds values."""
        self._unchecked.remove(examples)
        held, found = self._known[examples].get(""), self._measured(examples, [])
        if held is not None and (
            held.shape != found.shape or np.mean(abs(found - held)) > _ROUNDING * np.mean(abs(held))
        ):
            raise ValueError(
                f"{self._file} holds values of another model, measure or set {examples!r} of "
                "examples; name another file"
            )

    def _measured(self, examples: str, off: list[Head]) -> np.ndarray:
        self.passes += 1
        with evaluating(self._model), heads_off(self._model, off):
            found = self._measure(examples)
        named = found if isinstance(found, Mapping) else {"loss": found}
        arrays = [
            np.asarray(each.cpu() if isinstance(each, Tensor) else each, dtype=float)
            for each in named.values()
        ]
        self.quantities = self.quantities or tuple(named)
        whole = self._known.get(examples, {}).get("")
        shapes = {each.reshape(len(each), -1).shape if each.ndim else () for each in arrays}
        if (
            tuple(named) != self.quantities
            or len(shapes) != 1
            or any(each.ndim not in (1, 2) for each in arrays)
            or (whole is not None and whole.shape[1:] not in shapes)
        ):
            shown = {name: each.shape for name, each in zip(named, arrays)}
            raise ValueError(
                f"measure gives {shown} for {examples!r}, but must give the same quantities each "
                "time, each of one value for every example, shape (P,), or (P, C) for C draws"
            )
        values = np.stack([each.reshape(len(each), -1) for each in arrays])
        if wrong := np.count_nonzero(~np.isfinite(values)):
            raise ValueError(
                f"measure gives {wrong} of {values.size} values for {examples!r} that are NaN or "
                f"infinite, with {len(off)} heads off; every example needs a finite one"
            )
        return values
