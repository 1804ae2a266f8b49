"""Labels as users have them, turned into the targets that the theory takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pathkernel_core.system.text import printable


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels as the theory takes them.

    Attributes
    ----------
    values : dict of str to array, shape (P,) or (P, C)
        float64, under the names of their arrays.
    kind : "classes" or "targets"
    note : str
        How they were changed; empty if they were not.
    names : tuple of str or None
        Class that each of several outputs stands for, if they have names.
    """

    values: dict[str, np.ndarray]
    kind: str
    note: str = ""
    names: tuple[str, ...] | None = None


def read_labels(labels: Mapping[str, np.ndarray], kind: str | None = None) -> Labels:
    """Convert labels of training and test examples to the theory's, and tell their kind.

    Their type decides unless ``kind`` does: integers, booleans and text are classes,
    floating-point numbers are targets, whatever their values. Integers of several outputs are
    classes if every row holds a single 1, among 0 or −1.

    Two classes become −1 and +1 in sorted order; C > 2 classes become C outputs, +1 for the class
    and −1 for the others. Targets stay as they are.

    Parameters
    ----------
    labels : mapping of str to array, shape (P,) or (P, C)
        By the name of their array, the training labels first.
    kind : "classes", "targets" or None

    Raises
    ------
    ValueError
        If labels are NaN, of another type or shape, do not differ, are of classes that the
        training labels lack, or not of the given kind. The message names the array.
    """
    arrays = {name: _vector(name, array) for name, array in labels.items()}
    first = next(iter(arrays))
    for name, array in arrays.items():
        if array.shape[1:] != arrays[first].shape[1:]:
            raise ValueError(
                f"{name} of shape {array.shape} must have as many outputs as {first} of shape "
                f"{arrays[first].shape}"
            )
        if (array.dtype.kind == "U") != (arrays[first].dtype.kind == "U"):
            raise ValueError(f"{name} and {first} must both be text, or both be numbers")
    typed = all(array.dtype.kind != "f" for array in arrays.values())
    if arrays[first].ndim == 2:
        if kind == "classes" or (kind is None and typed and _coding(arrays) is not None):
            return _of_outputs(arrays)
    elif kind == "classes" or (kind is None and arrays[first].dtype.kind != "f"):
        return _of_classes(arrays, first)
    return _of_targets(arrays, first, kind is not None)


def _vector(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(f"{name} must have shape (P,) or (P, C), but has {array.shape}")
    if array.dtype.kind not in "biufU" or (array.dtype.kind == "U" and array.ndim == 2):
        raise ValueError(
            f"{name} must hold classes (whole numbers or text) or real numbers, but holds "
            f"{array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity")
    return array


def _of_classes(arrays: dict[str, np.ndarray], first: str) -> Labels:
    for name, array in arrays.items():
        if array.dtype.kind == "f" and (array != array.round()).any():
            strange = array[array != array.round()][0]
            raise ValueError(f"{name} holds {strange:g}, which is no whole number, hence no class")
    classes = np.unique(arrays[first])
    if len(classes) < 2:
        raise ValueError(f"{first} holds a single class, {classes[0]}; there is nothing to tell")
    if len(classes) > max(2, len(arrays[first]) // 2):
        raise ValueError(
            f"{first} holds {len(classes)} different values among {len(arrays[first])}, too many "
            "for classes; take numbers as targets with kind='targets' (--kind targets)"
        )
    for name, array in arrays.items():
        strange = np.setdiff1d(array, classes)
        if strange.size:
            raise ValueError(f"{name} holds the class {strange[0]}, which {first} lacks")
    indices = {name: np.searchsorted(classes, array) for name, array in arrays.items()}
    names = tuple(
        f"{name:g}" if classes.dtype.kind == "f" else printable(str(name)) for name in classes
    )
    if len(classes) == 2:
        mapped = {name: 2.0 * index - 1 for name, index in indices.items()}
        plain = names == ("-1", "1") and classes.dtype.kind != "U"
        note = "" if plain else f"classes {names[0]} and {names[1]} became −1 and +1"
        return Labels(mapped, "classes", note)
    mapped = {
        name: np.where(index[:, None] == np.arange(len(classes)), 1.0, -1.0)
        for name, index in indices.items()
    }
    listed = ", ".join(names[:10]) + (", …" if len(classes) > 10 else "")
    note = (
        f"{len(classes)} classes ({listed}) became as many outputs, +1 for the class and −1 for "
        "the others"
    )
    return Labels(mapped, "classes", note, names)


def _coding(arrays: dict[str, np.ndarray]) -> int | None:
    """Value next to the single 1 of every row, 0 or −1; None if the labels are not one-hot."""
    for off in (0, -1):
        if all(
            np.isin(array, (off, 1)).all() and ((array == 1).sum(axis=1) == 1).all()
            for array in arrays.values()
        ):
            return off
    return None


def _of_outputs(arrays: dict[str, np.ndarray]) -> Labels:
    off = _coding(arrays)
    if off is None:
        raise ValueError(
            f"classes of several outputs must hold a single 1 in every row, among 0 or −1, but "
            f"{', '.join(arrays)} hold others; take them as targets with kind='targets' "
            "(--kind targets)"
        )
    mapped = {name: np.where(array == 1, 1.0, -1.0) for name, array in arrays.items()}
    note = "" if off else "one-hot classes of 0 and 1 became −1 and +1"
    return Labels(mapped, "classes", note)


def _of_targets(arrays: dict[str, np.ndarray], first: str, is_explicit: bool) -> Labels:
    for name, array in arrays.items():
        if array.dtype.kind == "U":
            raise ValueError(f"{name} holds text, which is no target; leave kind='targets' out")
    values = {name: array.astype(np.float64) for name, array in arrays.items()}
    if not np.ptp(values[first], axis=0).any():
        raise ValueError(f"{first} holds the same number everywhere; there is nothing to learn")
    note = "real targets, scored by squared error" + (" as asked for" if is_explicit else "")
    if not is_explicit and all(
        array.ndim == 1 and (array == array.round()).all() for array in values.values()
    ):
        note += (
            "; they are whole numbers, but stored as floating-point ones: if they are classes, say "
            "so with kind='classes' (--kind classes)"
        )
    return Labels(values, "targets", note)
