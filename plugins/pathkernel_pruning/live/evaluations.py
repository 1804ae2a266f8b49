"""A measure of a live model with sets of heads off, each set evaluated once."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from pathkernel_core.paths.heads import Head, every_head, head_label
from pathkernel_core.system.atomic import replace_file
from pathkernel_core.system.local_files import is_damage
from pathkernel_core.system.progress import Progress, Report, silent
from pathkernel_datasets.variables.head_axis import heads_named
from pathkernel_models.compared_layers import ComparedLayers
from pathkernel_models.families.recognition import attention_modules
from pathkernel_models.heads_off import gains_by_layer, heads_by_layer, refuse_shared_weights
from pathkernel_models.state import set_evaluation, without_fused_layers
from pathkernel_models.switching import scale_heads, switch_off_heads
from pathkernel_pruning.heads.evaluator import Evaluator, RefittedEvaluator

Measure = Callable[[str], Any]
"""Takes the name of a set of examples; see :func:`pathkernel.compare_heads`."""

Refit = Callable[[Sequence[Head]], xr.DataArray]
"""Takes the heads that are off, and gives the gains of all; see :func:`compare_heads`."""

_REFITTED = ", refitted"  # of sets of examples, in the cache
_WRITE_EVERY = 5.0  # seconds, at least; writing takes at most 5 % of the time
_ROUNDING = 1e-3  # relative change that another number of threads or device may cause
_FLIPPED = 0.01  # share of examples that rounding may turn from right to wrong or back


class Evaluations:
    """Measure a model with heads off, each set of heads once: an evaluator of orders.

    Parameters
    ----------
    model, measure, kept
        As for :func:`pathkernel_pruning.live.comparison.compare_heads`. The model is measured in
        evaluation mode and without gradients.

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
        self._layers = attention_modules(model)
        refuse_shared_weights(model, self._layers)
        self._compared = ComparedLayers()
        self.heads = tuple(attention.heads for attention in self._layers)
        self.report: Report = silent
        self._passes = 0
        self._names: tuple[str, ...] = ()  # of quantities, once they are measured
        self._cache: dict[str, dict[str, np.ndarray]] = {}  # by examples, then heads off
        self._unchecked = set[str]()
        if not (kept is None or isinstance(kept, str | os.PathLike)):
            raise TypeError(f"kept must name a file, but is a {type(kept).__name__}")
        self._file = None if kept is None else Path(kept)
        if self._file is not None:
            self._digest = _digest(model)
            self._read(self._file)
        self._due = time.monotonic() + _WRITE_EVERY

    @property
    def quantities(self) -> dict[str, int]:
        """Map the loss to −1, and every other quantity, better if larger, to 1."""
        return {name: 1 if number else -1 for number, name in enumerate(self._names)}

    def evaluate(self, examples: str, present: np.ndarray) -> np.ndarray:
        """Return values with some of the heads, (k, Q, P, C); see ``Evaluator.evaluate``.

        Raises a ValueError if the measure gives other shapes than it should, values that are not
        finite, or values that the file contradicts.
        """
        return self._evaluate_sets(examples, present, refit=None)

    def refit_by(self, refit: Refit) -> Evaluator:
        """Return an evaluator of the same model with the gains of heads that are left refitted."""
        return RefittedEvaluator(self, partial(self._evaluate_sets, refit=refit))

    def _evaluate_sets(
        self, examples: str, present: np.ndarray, *, refit: Refit | None
    ) -> np.ndarray:
        heads = every_head(self.heads)
        sets = [[heads[number] for number in np.flatnonzero(~row)] for row in present]
        return np.stack([self._values(examples, off, refit) for off in sets])

    def _values(self, examples: str, off: list[Head], refit: Refit | None) -> np.ndarray:
        name = " ".join(map(head_label, off))
        self.report(Progress(self._passes, None, f"{examples} examples, {len(off)} heads off"))
        key = examples if refit is None else f"{examples}{_REFITTED}"
        if key in self._unchecked:
            self._check(key, refit)
        cached = self._cache.setdefault(key, {})
        if name not in cached:
            cached[name] = self._measure_set(key, off, refit)
            if time.monotonic() > self._due:
                self.write()
        return cached[name]

    def write(self) -> None:
        """Write all values to the file, if there is one; warn if it cannot be written."""
        if self._file is None or not any(self._cache.values()):
            return
        started = time.monotonic()
        arrays = {"model": np.array(self._digest), "quantities": np.array(self._names)}
        for examples, cached in self._cache.items():
            if cached:  # else stopped in the first measure of these examples
                arrays[f"off {examples}"] = np.array(list(cached))
                arrays[f"values {examples}"] = np.stack(list(cached.values()))
        try:
            with replace_file(self._file) as partial, open(partial, "wb") as stream:
                np.savez_compressed(stream, **arrays)
        except OSError as error:  # the values are still in memory
            warnings.warn(f"evaluations are not kept: {error}", RuntimeWarning, stacklevel=2)
        # large files of many sets are written less often: at most 5 % of the time goes there
        now = time.monotonic()
        self._due = now + max(_WRITE_EVERY, 20 * (now - started))

    def _read(self, file: Path) -> None:
        if not file.parent.is_dir():
            raise ValueError(f"kept names a file in {file.parent}, which is no folder; make it")
        if not file.exists():
            return
        if not file.is_file():
            raise ValueError(f"kept must name a file, but {file} is a folder, a pipe or a device")
        try:
            digest, self._names, self._cache = _load_values(file)
        except Exception as error:
            if not is_damage(error):
                raise
            raise ValueError(
                f"{file} is no file in which compare_heads keeps its evaluations; name another file"
            ) from error
        if digest != self._digest:
            raise ValueError(
                f"{file} holds values of a model with other weights; name another file"
            )
        self._unchecked = set(self._cache)

    def _check(self, examples: str, refit: Refit | None) -> None:
        """Measure once and compare with the file."""
        name, stored = next(iter(self._cache[examples].items()))
        names, values = self._measure_once(examples, heads_named(name.split()), refit)
        if names != self._names or values.shape != stored.shape or not self._close(values, stored):
            raise ValueError(
                f"{self._file} holds values of another measure or set {examples!r} of examples; "
                "name another file"
            )
        self._cache[examples][name] = values
        self._unchecked.remove(examples)

    def _close(self, values: np.ndarray, stored: np.ndarray) -> bool:
        """Whether values (Q, P, C) of every quantity and draw are equal to rounding."""
        # another machine or number of threads rounds differently, in the model's own precision; a
        # value that is right or wrong may then flip for a few examples near the boundary
        kinds = {part.dtype for part in self._model.parameters() if part.is_floating_point()}
        rounding = max([_ROUNDING, *(8 * torch.finfo(kind).eps for kind in kinds)])
        change, size = abs(values - stored), abs(stored).mean(axis=1, keepdims=True)
        rounded = (change <= rounding * (abs(stored) + size)).all(axis=1)
        truths = np.isin(stored, (0, 1)).all(axis=1)  # right or wrong
        return bool((rounded | (truths & (change.mean(axis=1) <= _FLIPPED))).all())

    def _measure_set(self, examples: str, off: list[Head], refit: Refit | None) -> np.ndarray:
        quantities, values = self._measure_once(examples, off, refit)
        for name, cached in self._cache.items():
            reference = next(iter(cached.values()), values)
            # draws agree among all sets of examples, the number of examples within a set
            axes = slice(1, None) if name == examples else slice(2, None)
            if quantities != (self._names or quantities) or (
                values.shape[axes] != reference.shape[axes]
            ):
                raise ValueError(
                    f"measure gives {', '.join(quantities)} of shape {values.shape[1:]} for "
                    f"{examples!r} with {len(off)} heads off, but gave "
                    f"{', '.join(self._names)} of shape {reference.shape[1:]} for {name!r}; it "
                    "must give the same quantities and draws each time"
                )
        self._names = quantities
        return values

    def _measure_once(
        self, examples: str, off: list[Head], refit: Refit | None
    ) -> tuple[tuple[str, ...], np.ndarray]:
        self._passes += 1
        by_layer = heads_by_layer(self._layers, off)
        with ExitStack() as stack:
            if refit is not None:
                gains = gains_by_layer(self._layers, refit(off), by_layer)
                stack.enter_context(scale_heads(self._layers, gains, self._compared))
            stack.enter_context(set_evaluation(self._model))
            stack.enter_context(without_fused_layers(self._model))
            stack.enter_context(switch_off_heads(self._layers, by_layer, self._compared))
            measured = self._measure(examples.removesuffix(_REFITTED))
        if isinstance(measured, tuple):
            raise ValueError(
                f"measure gives a tuple of {len(measured)} for {examples!r}; name several "
                'quantities in a mapping, such as {"loss": …, "accuracy": …}'
            )
        named = measured if isinstance(measured, Mapping) else {"loss": measured}
        _check_loss_comes_first(named)
        try:
            arrays = list(map(host_array, named.values()))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"measure gives values for {examples!r} that are no real numbers, or of unequal "
                f"rows ({error}); give one for every example, shape (P,)"
            ) from error
        shapes = {array.shape if array.ndim == 2 else (*array.shape, 1) for array in arrays}
        if len(shapes) != 1 or any(array.ndim not in (1, 2) or not array.size for array in arrays):
            shown = {name: array.shape for name, array in zip(named, arrays)}
            raise ValueError(
                f"measure gives {shown} for {examples!r}, but must give one value for every "
                "example, shape (P,), or (P, C) for C draws, the same of all quantities"
            )
        values = np.stack([array.reshape(len(array), -1) for array in arrays])
        if invalid := np.count_nonzero(~np.isfinite(values)):
            raise ValueError(
                f"measure gives {invalid} of {values.size} values for {examples!r} that are NaN or "
                f"infinite, with {len(off)} heads off; every example needs a finite one"
            )
        return tuple(named), values


def host_array(values: Any) -> np.ndarray:
    """Convert numbers, or a tensor of any device and precision, to a float64 array."""
    if isinstance(values, Tensor) and not values.is_complex():
        values = values.detach().cpu().double().numpy()
    if np.iscomplexobj(values):
        raise TypeError("complex numbers")
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
    """Return the SHA-256 of the tensors of a model's state dict and their names."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):  # modules may add other objects
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _load_values(file: Path) -> tuple[str, tuple[str, ...], dict[str, dict[str, np.ndarray]]]:
    """Read the model's digest, quantities and values from a file; raise if it is damaged."""
    with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        quantities, cache = tuple(map(str, arrays["quantities"])), {}
        for key in arrays:
            if key.startswith("off "):
                examples = key.removeprefix("off ")
                values = arrays[f"values {examples}"]
                if (
                    (values.ndim, values.dtype) != (4, np.float64)
                    or not len(values)
                    or values.shape[1] != len(quantities)
                    or not np.isfinite(values).all()
                ):
                    raise ValueError(f"values of {examples} have shape {values.shape}")
                cache[examples] = dict(zip(arrays[key].tolist(), values, strict=True))
        return str(arrays["model"]), quantities, cache
