"""A measure of a live model with sets of heads off, each set evaluated once."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pathkernel_capture.families import attention_modules
from pathkernel_capture.removal import heads_off
from pathkernel_capture.state import evaluating
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_datasets.atomic import replacing
from pathkernel_tasks.array_files import read_arrays
from pathkernel_tasks.array_guards import real_numbers
from pathkernel_trained.heads import Head, every_head

Measure = Callable[[str], Any]
"""What is measured of a model, as :func:`pathkernel_capture.compare_heads` describes it."""

_WRITE_EVERY = 5.0  # seconds, and so much more that writing takes little of them
_ROUNDING = 1e-3  # change by another number of threads or device, at most; of the mean
_FLIPPED = 0.01  # of the examples may be right instead of wrong by rounding, or the reverse


class Evaluations:
    """Values of a measure for every example, with heads of a model off: an evaluator of orders.

    Parameters
    ----------
    model, measure, kept
        As for :func:`pathkernel_capture.compare_heads`. The model is measured in evaluation mode
        and without gradients.

    Attributes
    ----------
    heads : tuple of int
        Heads of each layer, all of which may be off.
    report : callable
        Called with a Progress before every evaluation.

    Raises
    ------
    CaptureError
        If the model's attention is not known.
    ValueError
        If the file is of another model or of another kind, or its folder does not exist.
    """

    keeps_layers = False

    def __init__(self, model: nn.Module, measure: Measure, kept: str | os.PathLike | None = None):
        self._model, self._measure = model, measure
        self.heads = tuple(attention.heads for attention in attention_modules(model))
        self.report: Report = silent
        self._passes = 0
        self._names: tuple[str, ...] = ()  # of quantities, once they are measured
        self._known: dict[str, dict[str, np.ndarray]] = {}  # of examples, then of heads off
        self._unchecked = set[str]()
        self._file = None if kept is None else Path(kept)
        if self._file is not None:
            self._digest = _digest(model)
            self._read(self._file)
        self._due = time.monotonic() + _WRITE_EVERY

    @property
    def quantities(self) -> dict[str, int]:
        """Name of each quantity → −1 for the loss, 1 for the others, which are better if larger."""
        return {name: 1 if number else -1 for number, name in enumerate(self._names)}

    def evaluate(self, examples: str, present: np.ndarray) -> np.ndarray:
        """Values with some of the heads, (k, Q, P, C), see ``Evaluator.evaluate``.

        Raises a ValueError if the measure gives other shapes than it should, values that are not
        finite, or values that the file contradicts.
        """
        heads = every_head(self.heads)
        sets = [[heads[number] for number in np.flatnonzero(~row)] for row in present]
        return np.stack([self._values(examples, off) for off in sets])

    def _values(self, examples: str, off: list[Head]) -> np.ndarray:
        name = " ".join(f"{layer}-{head}" for layer, head in off)
        self.report(Progress(self._passes, None, f"{examples} examples, {len(off)} heads off"))
        if examples in self._unchecked:
            self._check(examples)
        known = self._known.setdefault(examples, {})
        if name not in known:
            known[name] = self._measured(examples, off)
            if time.monotonic() > self._due:
                self.write()
        return known[name]

    def write(self) -> None:
        """Bring the file up to date, if there is one; warn if it cannot be written."""
        if self._file is None or not any(self._known.values()):
            return
        started = time.monotonic()
        arrays = {"model": np.array(self._digest), "quantities": np.array(self._names)}
        for examples, known in self._known.items():
            if not known:  # stopped in the first measure of these examples
                continue
            arrays[f"off {examples}"] = np.array(list(known))
            arrays[f"values {examples}"] = np.stack(list(known.values()))
        try:
            with replacing(self._file) as partial, open(partial, "wb") as stream:
                np.savez_compressed(stream, **arrays)
        except OSError as error:  # what was measured is still here
            warnings.warn(f"evaluations are not kept: {error}", RuntimeWarning, stacklevel=2)
        now = time.monotonic()
        self._due = now + max(_WRITE_EVERY, 20 * (now - started))

    def _read(self, file: Path) -> None:
        if not file.parent.is_dir():
            raise ValueError(f"kept names a file in {file.parent}, which is no folder; make it")
        if file.is_dir():
            raise ValueError(f"kept must name a file, but {file} is a folder")
        if not file.exists():
            return
        try:
            digest, self._names, self._known = _stored(file)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is no file in which compare_heads keeps its evaluations; name another file"
            ) from error
        if digest != self._digest:
            raise ValueError(
                f"{file} holds values of a model with other weights; name another file"
            )
        self._unchecked = set(self._known)

    def _check(self, examples: str) -> None:
        """Compare the measure with the one of which the file holds values."""
        name, stored = next(iter(self._known[examples].items()))
        pairs = (head.split("-") for head in name.split())
        off = [(int(layer), int(head)) for layer, head in pairs]
        names, values = self._measure_once(examples, off)
        if names != self._names or values.shape != stored.shape or not self._close(values, stored):
            raise ValueError(
                f"{self._file} holds values of another measure or set {examples!r} of examples; "
                "name another file"
            )
        self._known[examples][name] = values
        self._unchecked.remove(examples)

    def _close(self, values: np.ndarray, stored: np.ndarray) -> bool:
        """Whether values (Q, P, C) are the same but for rounding, of every quantity and draw."""
        kinds = {part.dtype for part in self._model.parameters() if part.is_floating_point()}
        rounding = max([_ROUNDING, *(8 * torch.finfo(kind).eps for kind in kinds)])
        change, size = abs(values - stored), abs(stored).mean(axis=1, keepdims=True)
        rounded = (change <= rounding * (abs(stored) + size)).all(axis=1)
        truths = np.isin(stored, (0, 1)).all(axis=1)  # right or wrong
        return bool((rounded | (truths & (change.mean(axis=1) <= _FLIPPED))).all())

    def _measured(self, examples: str, off: list[Head]) -> np.ndarray:
        quantities, values = self._measure_once(examples, off)
        for name, known in self._known.items():
            others = next(iter(known.values()), values)
            # all sets of examples have the same draws, and a set the same examples each time
            alike = slice(1, None) if name == examples else slice(2, None)
            if quantities != (self._names or quantities) or (
                values.shape[alike] != others.shape[alike]
            ):
                raise ValueError(
                    f"measure gives {', '.join(quantities)} of shape {values.shape[1:]} for "
                    f"{examples!r} with {len(off)} heads off, but gave "
                    f"{', '.join(self._names)} of shape {others.shape[1:]} for {name!r}; it "
                    "must give the same quantities and draws each time"
                )
        self._names = quantities
        return values

    def _measure_once(self, examples: str, off: list[Head]) -> tuple[tuple[str, ...], np.ndarray]:
        self._passes += 1
        with evaluating(self._model), heads_off(self._model, off):
            found = self._measure(examples)
        named = found if isinstance(found, Mapping) else {"loss": found}
        _check_loss_comes_first(named)
        arrays = list(map(host_array, named.values()))
        shapes = {each.shape if each.ndim == 2 else (*each.shape, 1) for each in arrays}
        if len(shapes) != 1 or any(each.ndim not in (1, 2) or not each.size for each in arrays):
            shown = {name: each.shape for name, each in zip(named, arrays)}
            raise ValueError(
                f"measure gives {shown} for {examples!r}, but must give one value for every "
                "example, shape (P,), or (P, C) for C draws, the same of all quantities"
            )
        values = np.stack([each.reshape(len(each), -1) for each in arrays])
        if wrong := np.count_nonzero(~np.isfinite(values)):
            raise ValueError(
                f"measure gives {wrong} of {values.size} values for {examples!r} that are NaN or "
                f"infinite, with {len(off)} heads off; every example needs a finite one"
            )
        return tuple(named), values


def host_array(values: Any) -> np.ndarray:
    """Numbers of any kind as a float64 array: also tensors of any device and precision."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=float)


def _check_loss_comes_first(named: Mapping[str, Any]) -> None:
    first = next(iter(named), None)
    truths = (torch.bool, np.dtype(bool))
    if (
        first is None
        or getattr(named[first], "dtype", None) in truths
        or ("loss" in named and first != "loss")
        or first == "accuracy"
    ):
        raise ValueError(
            f"measure gives {', '.join(map(repr, named)) or 'nothing'}, but must give first a "
            "loss, which is better the smaller it is, then what is better the larger it is"
        )


def _digest(model: nn.Module) -> str:
    """Of the tensors that the model is saved by, and their names."""
    digest = hashlib.sha256()
    for name, held in model.state_dict().items():
        if not isinstance(held, Tensor):  # what a module keeps beside them
            continue
        digest.update(f"{name} {held.dtype} {tuple(held.shape)} ".encode())
        digest.update(held.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _stored(file: Path) -> tuple[str, tuple[str, ...], dict[str, dict[str, np.ndarray]]]:
    """Digest of the model, quantities and values of a file; raises if it is another or damaged."""
    arrays, _ = read_arrays(file, "file of evaluations")
    quantities, known = tuple(map(str, arrays["quantities"])), {}
    for key in arrays:
        if key.startswith("off "):
            examples = key.removeprefix("off ")
            values = real_numbers(key, arrays[f"values {examples}"], whole=False)
            if values.ndim != 4 or not len(values) or values.shape[1] != len(quantities):
                raise ValueError(f"values of {examples} have shape {values.shape}")
            known[examples] = dict(zip(arrays[key].tolist(), values, strict=True))
    return str(arrays["model"]), quantities, known
