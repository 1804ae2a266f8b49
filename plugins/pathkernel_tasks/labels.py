"""Labels as users have them, turned into the targets that the theory takes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def targets(labels: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], str]:
    """Targets of the training and test examples, and a sentence that says what became of labels.

    The training labels decide: whole numbers, booleans and text are classes, and so are real
    numbers that are all 0 or 1, or all ±1. Two classes become −1 and +1 in sorted order; C > 2
    classes become C outputs, +1 for the class and −1 for the others. Other real numbers are targets
    as they stand.

    Parameters
    ----------
    labels : mapping of str to array, shape (P,) or (P, C)
        By the name of their array, the training labels first.

    Returns
    -------
    targets : dict of str to array, shape (P,) or (P, C)
        float64, under the same names.
    note : str
        Empty if nothing was changed.

    Raises
    ------
    ValueError
        If labels are NaN, of another type or shape, do not differ, or are of classes that the
        training labels lack. The message names the array.
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
    if arrays[first].ndim == 2:
        return _several(arrays)
    if _are_classes(arrays[first]):
        return _of_classes(arrays, first)
    return _real(arrays, first)


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


def _are_classes(array: np.ndarray) -> bool:
    if array.dtype.kind != "f":
        return True
    return bool(np.isin(array, (0, 1)).all() or np.isin(array, (-1, 1)).all())


def _of_classes(arrays: dict[str, np.ndarray], first: str) -> tuple[dict[str, np.ndarray], str]:
    classes = np.unique(arrays[first])
    if len(classes) < 2:
        raise ValueError(f"{first} holds a single class, {classes[0]}; there is nothing to tell")
    if len(classes) > max(2, len(arrays[first]) // 2):
        raise ValueError(
            f"{first} holds {len(classes)} different values among {len(arrays[first])}, too many "
            "for classes; write real-valued targets as floating-point numbers"
        )
    for name, array in arrays.items():
        strange = np.setdiff1d(array, classes)
        if strange.size:
            raise ValueError(f"{name} holds the class {strange[0]}, which {first} lacks")
    places = {name: np.searchsorted(classes, array) for name, array in arrays.items()}
    if len(classes) == 2:
        mapped = {name: 2.0 * place - 1 for name, place in places.items()}
        plain = classes.dtype.kind != "U" and np.array_equal(classes, (-1, 1))
        note = "" if plain else f"classes {classes[0]} and {classes[1]} became −1 and +1"
        return mapped, note
    numbers = np.arange(len(classes))
    mapped = {
        name: np.where(place[:, None] == numbers, 1.0, -1.0) for name, place in places.items()
    }
    listed = ", ".join(str(name) for name in classes[:10]) + (", …" if len(classes) > 10 else "")
    return mapped, (
        f"{len(classes)} classes ({listed}) became as many outputs, +1 for the class and −1 for "
        "the others"
    )


def _several(arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], str]:
    values = {name: array.astype(np.float64) for name, array in arrays.items()}
    if all(
        np.isin(array, (0, 1)).all() and (array.sum(axis=1) == 1).all() for array in values.values()
    ):
        mapped = {name: 2 * array - 1 for name, array in values.items()}
        return mapped, "one-hot classes of 0 and 1 became −1 and +1"
    return values, ""


def _real(arrays: dict[str, np.ndarray], first: str) -> tuple[dict[str, np.ndarray], str]:
    for name, array in arrays.items():
        if array.dtype.kind == "U" or not (array != 0).all():
            raise ValueError(
                f"{name} holds real-valued targets of which some are exactly 0: they have no "
                "sign, by which accuracy is counted; shift them a little, or label classes by "
                "whole numbers"
            )
    if not (arrays[first] != arrays[first][0]).any():
        raise ValueError(f"{first} holds the same number everywhere; there is nothing to learn")
    values = {name: array.astype(np.float64) for name, array in arrays.items()}
    return values, "real-valued targets; accuracy is the fraction of predictions of the right sign"
