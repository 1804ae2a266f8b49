"""Files of state dicts: their names and shapes, and the arrays that are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pathkernel_tasks.array_files import brain_float
from pathkernel_tasks.array_guards import (
    check_names,
    check_size,
    check_suffix,
    real_numbers,
    regular_files,
)

KIND = "state dict"


def state_dict_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a state dict's arrays, without reading them.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is no safetensors file, or a name in it leads out of it.
    """
    with _opened(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def read_state_dict(path: str | Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays of a state dict, in float64; bfloat16 is understood.

    Parameters
    ----------
    path : str or Path
        File that ends in ``.safetensors``.
    names : sequence of str
        Arrays to read, so that a large model is not read as a whole.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is no safetensors file, a name in it leads out of it, the arrays do not fit into
        memory, or one is missing, holds no real numbers, or holds NaN or infinity.
    """
    arrays = {}
    with _opened(path) as file:
        present = set(file.keys())
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in present & {*names}}
        check_size(path, KIND, {name: (shape, 8) for name, shape in shapes.items()})
        kinds = {name: file.get_slice(name).get_dtype() for name in names if name in present}
        for name, kind in kinds.items():
            if kind in ("F64", "F32", "F16"):
                arrays[name] = file.get_tensor(name)
            elif kind != "BF16":
                raise ValueError(
                    f"{KIND} {str(path)!r}: {name!r} holds {kind}, no real numbers that are read; "
                    "those of a quantised model have their scales elsewhere: convert it to "
                    "bfloat16 or float32 first"
                )
    missing = [name for name in names if name not in kinds]
    if missing:
        raise ValueError(f"{KIND} {str(path)!r} lacks {', '.join(map(repr, missing))}")
    for name in sorted(kinds.keys() - arrays.keys()):
        arrays[name] = brain_float(path, name)
    return {
        name: real_numbers(f"{KIND} {str(path)!r}: {name!r}", array, whole=False)
        for name, array in arrays.items()
    }


def _opened(path: str | Path):  # noqa: ANN202 - a type of the safetensors extension
    check_suffix(path, KIND, (".safetensors",))
    from safetensors import SafetensorError, safe_open

    regular_files(path, KIND)
    try:
        file = safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{KIND} {str(path)!r} is damaged or of another format: {error}"
        ) from error
    check_names(path, KIND, file.keys())
    return file
