"""Files of state dicts: their names and shapes, and the arrays that are asked for."""

from __future__ import annotations

import json
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
_FILE = "model.safetensors"
_INDEX = f"{_FILE}.index.json"
_LARGEST = 2**26  # bytes of an index


def state_dict_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a state dict's arrays, without reading them.

    Parameters
    ----------
    path : str or Path
        File that ends in ``.safetensors``, the index of a model in several such files
        (``.safetensors.index.json``), or the folder that holds either.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is no safetensors file, or a name in it leads out of it.
    """
    shapes = {}
    for part in _parts(path):
        with _opened(part) as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                shapes[name] = tuple(file.get_slice(name).get_shape())
    return shapes


def read_state_dict(path: str | Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays of a state dict, in float64; bfloat16 is understood.

    Parameters
    ----------
    path : str or Path
        As for :func:`state_dict_shapes`.
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
    arrays, shapes = {}, {}
    for part in _parts(path):
        with _opened(part) as file:
            held = [name for name in names if name in set(file.keys())]
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in held}
            check_size(path, KIND, {name: (shape, 8) for name, shape in shapes.items()})
            for name in held:
                kind = file.get_slice(name).get_dtype()
                if kind not in ("F64", "F32", "F16", "BF16"):
                    raise ValueError(
                        f"{KIND} {str(part)!r}: {name!r} holds {kind}, no real numbers that are "
                        "read; those of a quantised model have their scales elsewhere: convert it "
                        "to bfloat16 or float32 first"
                    )
                array = brain_float(part, name) if kind == "BF16" else file.get_tensor(name)
                title = f"{KIND} {str(part)!r}: {name!r}"
                arrays[name] = real_numbers(title, array, whole=False)
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(f"{KIND} {str(path)!r} lacks {', '.join(map(repr, missing))}")
    return arrays


def _parts(path: str | Path) -> list[Path]:
    """Safetensors files that a state dict consists of."""
    path = Path(path)
    if path.is_dir():
        held = [path / name for name in (_FILE, _INDEX) if (path / name).exists()]
        if not held:
            raise FileNotFoundError(f"the folder {str(path)!r} holds no {_FILE} and no {_INDEX}")
        path = held[0]
    if not path.name.endswith(".safetensors.index.json"):
        check_suffix(path, KIND, (".safetensors",))
        return regular_files(path, KIND)
    regular_files(path, KIND)
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"it takes {path.stat().st_size} bytes")
        files = sorted({*json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()})
        check_names(path, KIND, files)
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"index {str(path)!r} of a {KIND} is damaged: {error}") from error
    for file in files:
        check_suffix(file, KIND, (".safetensors",))
    return [part for file in files for part in regular_files(path.with_name(file), KIND)]


def _opened(path: Path):  # noqa: ANN202 - a type of the safetensors extension
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{KIND} {str(path)!r} is damaged or of another format: {error}"
        ) from error
    check_names(path, KIND, file.keys())
    return file
