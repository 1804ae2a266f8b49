"""The array library of the arrays that come in, and the few routines its standard lacks.

Everything else in the core is written against the Python array API standard. Only the routines at
the end of this file know the names of array libraries.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
import scipy  # its parts are imported when they are used
from array_api_compat import (
    is_cupy_namespace,
    is_jax_namespace,
    is_numpy_namespace,
    is_torch_namespace,
)

from pathkernel_core.errors import PrecisionError

Array = Any
"""An array of any library that follows the Python array API standard."""

_NUMPY = array_api_compat.array_namespace(np.empty(0))
_SMALL = 2**17  # elements of an array that is looked at on the host, 1 MiB in float64
_HALVED = 1024  # columns from which a symmetric product is computed by blocks


def array_namespace(**arrays: Array) -> Any:
    """Namespace shared by the arrays, given as keyword arguments under the caller's names.

    Raises
    ------
    TypeError
        If an argument is no array, or the arrays are of different libraries or devices.
    PrecisionError
        If the arrays are JAX's and its 64-bit mode is off.
    """
    if all(type(array) is np.ndarray for array in arrays.values()):
        return _NUMPY  # at once: small problems ask often
    namespaces = {}
    for name, array in arrays.items():
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(
                f"{name} of shape {array.shape} is a masked array, whose mask would be lost; "
                "leave the masked examples out, or fill them"
            )
        try:
            namespaces[name] = array_api_compat.array_namespace(array)
        except TypeError:
            raise TypeError(
                f"{name} must be an array (NumPy, JAX, CuPy, PyTorch or another library of the "
                f"array API standard), not {type(array).__name__}; convert it, for example with "
                "numpy.asarray"
            ) from None
    first, xp = next(iter(namespaces.items()))
    for name, other in namespaces.items():
        if other is not xp:
            raise TypeError(
                f"{first} is an array of {library_name(xp)} but {name} is an array of "
                f"{library_name(other)}; convert one of them so that both use one library"
            )
    devices = {
        name: array_api_compat.device(array)
        for name, array in arrays.items()
        if not _is_tracer(array)
    }
    placed = next(iter(devices), "")
    for name, device in devices.items():
        if device != devices[placed]:
            raise TypeError(
                f"{placed} lies on device {devices[placed]} but {name} on {device}; "
                "move one of them with array_api_compat.to_device"
            )
    if is_jax_namespace(xp) and not sys.modules["jax"].config.jax_enable_x64:
        raise PrecisionError(
            "JAX's 64-bit mode is off, so it would compute in float32 whatever was asked for; "
            "set the environment variable JAX_ENABLE_X64=1, or call "
            "jax.config.update('jax_enable_x64', True) before the first array is made"
        )
    return xp


def library_name(xp: Any) -> str:
    """Short name of an array namespace, such as ``"numpy"`` or ``"torch"``."""
    return xp.__name__.removeprefix("array_api_compat.").removesuffix(".numpy")


def real_floating(name: str, array: Array, shape: tuple[int | str, ...] | None = None) -> Array:
    """Return ``array`` after checking that it is float64 or float32, finite and of a shape.

    A string in ``shape`` names a dimension of any length but zero. Integers become float64.
    """
    xp = array_api_compat.array_namespace(array)
    if shape is not None and (
        array.ndim != len(shape)
        or any(not isinstance(want, str) and want != got for want, got in zip(shape, array.shape))
    ):
        wanted = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        raise ValueError(f"{name} must have shape ({wanted}), but has {tuple(array.shape)}")
    for want, got in zip(shape or (), array.shape):
        if got == 0:
            raise ValueError(f"{name} of shape {tuple(array.shape)} is empty: {want} must not be 0")
    if xp.isdtype(array.dtype, ("integral", "bool")):
        array = xp.astype(array, xp.float64)
    if array.dtype not in (xp.float64, xp.float32):
        raise TypeError(
            f"{name} must be float64 or float32, but has dtype {array.dtype}; cast it to float64"
        )
    if not holds(finite(array)):
        wrong = xp.nonzero(~xp.isfinite(array if array.ndim else array[None]))
        first = ", ".join(str(int(index[0])) for index in wrong)
        raise ValueError(
            f"{name} of shape {tuple(array.shape)} holds NaN or infinity in {wrong[0].shape[0]} of "
            f"{math.prod(array.shape)} entries, first at index ({first}); remove or "
            "replace those values"
        )
    return array


def not_overflown(name: str, array: Array, remedy: str) -> Array:
    """Return a result after checking that it is finite, as its arguments were."""
    if not holds(finite(array)):
        raise ValueError(f"{name} of shape {tuple(array.shape)} overflows; {remedy}")
    return array


def holds(condition: Array) -> bool:
    """Truth of a zero-dimensional array; true where JAX traces and there is no value yet."""
    return _is_tracer(condition) or bool(condition)


def finite(array: Array) -> Array:
    """Whether all values are finite, as an array of no dimensions."""
    xp = array_api_compat.array_namespace(array)
    if is_jax_namespace(xp) and not _is_tracer(array) and array.size <= _SMALL:
        array, xp = to_host(array), np  # sooner there than compiled, anew for every shape
    return compiled(_all_finite, xp)(array)


def _all_finite(array: Array) -> Array:
    xp = array_api_compat.array_namespace(array)
    return xp.all(xp.isfinite(array))


def constant(array: Array) -> Array:
    """The array without the history by which PyTorch or JAX would differentiate it."""
    if array_api_compat.is_torch_array(array):
        return array.detach()
    return sys.modules["jax"].lax.stop_gradient(array) if _is_tracer(array) else array


def differentiated(array: Array) -> bool:
    """Whether PyTorch is asked for a gradient with respect to the array, or JAX traces it."""
    if array_api_compat.is_torch_array(array):
        return array.requires_grad and sys.modules["torch"].is_grad_enabled()
    return _is_tracer(array)


def _is_tracer(array: Array) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.core.Tracer)


def to_host(array: Array) -> np.ndarray:
    """The values as a NumPy array in host memory; only small arrays and results come here."""
    if isinstance(array, np.ndarray):
        return array
    if array_api_compat.is_torch_array(array):
        return array.detach().cpu().numpy()
    if array_api_compat.is_cupy_array(array):
        return array.get()
    if array_api_compat.is_jax_array(array) or not hasattr(array, "__dlpack__"):
        return np.asarray(array)
    return np.from_dlpack(array, device="cpu")  # as the standard copies from any device


def from_host(values: Any, like: Array, dtype: Any = None) -> Array:
    """Array with the library, device and, unless another is given, the dtype of ``like``.

    Values that JAX traces and PyTorch's are on the device already and stay as they are.
    """
    if isinstance(like, np.ndarray):
        return np.asarray(values, dtype=dtype or like.dtype)
    if _is_tracer(values) or array_api_compat.is_torch_array(values):
        return values
    xp = array_api_compat.array_namespace(like)
    values, dtype = np.asarray(values), dtype or like.dtype
    if _is_tracer(like):  # it has no device; the compiler places constants
        return xp.asarray(values, dtype=dtype)
    device = array_api_compat.device(like)
    if is_jax_namespace(xp):  # asarray would compile a copy for every shape
        return sys.modules["jax"].device_put(values.astype(dtype, copy=False), device)
    return xp.asarray(values, dtype=dtype, device=device)


def batches(total: int, size: int) -> list[slice]:
    """Slices of at most ``size`` that cover ``range(total)``."""
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def rows_of(array: Array, batch: slice) -> Array:
    """Rows of a batch; where it is the only one, the array as it is, for JAX compiles slices."""
    return array if batch == slice(0, array.shape[0]) else array[batch, ...]


def joined(parts: Sequence[Array], axis: int = 0) -> Array:
    """Arrays of batches, one after another."""
    if len(parts) == 1:
        return parts[0]
    return array_api_compat.array_namespace(*parts).concat(parts, axis=axis)


def identity(size: int, like: Array, xp: Any) -> Array:
    """Identity matrix with the dtype and device of ``like``."""
    if is_jax_namespace(xp):  # a traced array has no device; the compiler places constants
        return xp.eye(size, dtype=like.dtype)
    return xp.eye(size, dtype=like.dtype, device=array_api_compat.device(like))


def compiled(function: Callable, xp: Any, static: tuple[str, ...] = ()) -> Callable:
    """Compile ``function`` with ``jax.jit`` where the arrays are JAX's; elsewhere return it.

    Arguments named in ``static`` are no arrays; it is compiled anew for each of their values.
    """
    return _jitted(function, static) if is_jax_namespace(xp) else function


@functools.cache
def _jitted(function: Callable, static: tuple[str, ...]) -> Callable:
    import jax

    return jax.jit(function, static_argnames=static)


def host_callback(function: Callable, shape: tuple[int, ...], *arrays: Array) -> Array:
    """Result of a function that gives a NumPy array of this shape, like the first array.

    Where JAX traces, the function is called with the arrays on the host once they have values.
    """
    like = arrays[0]
    if not any(map(_is_tracer, arrays)):
        return from_host(function(*arrays), like)
    import jax

    result = jax.ShapeDtypeStruct(shape, like.dtype)

    def on_host(*values: Array) -> np.ndarray:
        return np.asarray(function(*map(np.asarray, values)), dtype=like.dtype)

    return jax.pure_callback(on_host, result, *arrays)


@dataclass(frozen=True)
class Derivatives:
    """Automatic differentiation of a function with respect to its first argument, a vector."""

    gradient: Callable
    """function → function that gives the gradient."""
    hessian: Callable
    """(function, x, number of columns at once) → matrix."""


def derivatives(xp: Any) -> Derivatives:
    """Automatic differentiation by the library of a namespace: PyTorch or JAX."""
    if is_torch_namespace(xp):
        from torch.func import grad, vjp, vmap

        def over_columns(column: Callable, x: Array, columns: int) -> Array:
            return vmap(column, chunk_size=columns)(identity(x.shape[0], x, xp))

    elif is_jax_namespace(xp):
        from jax import grad, lax, vjp

        def over_columns(column: Callable, x: Array, columns: int) -> Array:
            return lax.map(column, identity(x.shape[0], x, xp), batch_size=columns)

    else:
        raise TypeError(
            f"arrays of {library_name(xp)} cannot be differentiated; "
            "convert them to PyTorch's or JAX's"
        )

    def hessian(function: Callable, x: Array, columns: int) -> Array:
        _, pull_back = vjp(grad(function), x)
        return over_columns(lambda column: pull_back(column)[0], x, columns)

    return Derivatives(grad, hessian)


# Routines that the standard lacks, each sent to the best one of its library.


def add_to_diagonal(matrix: Array, value: float, xp: Any) -> Array:
    """Matrix plus ``value`` times the identity. Consumes ``matrix``: it may be changed in place."""
    if is_numpy_namespace(xp):
        matrix.flat[:: matrix.shape[0] + 1] += value
        return matrix
    return matrix + value * identity(matrix.shape[0], matrix, xp)


def gram_matrix(rows: Array, xp: Any) -> Array:
    """Product rowsᵀ rows of a matrix (rows, size), of which about one half is computed."""
    transposed = xp.matrix_transpose(rows)
    if is_numpy_namespace(xp) or rows.shape[1] < _HALVED:  # NumPy knows that it is symmetric
        return xp.matmul(transposed, rows)
    half = rows.shape[1] // 2
    one, two = rows[:, :half], rows[:, half:]
    beside = xp.matmul(transposed[:half, :], two)
    above = xp.concat((gram_matrix(one, xp), beside), axis=1)
    below = xp.concat((xp.matrix_transpose(beside), gram_matrix(two, xp)), axis=1)
    return xp.concat((above, below), axis=0)


def cholesky(matrix: Array, xp: Any) -> Array:
    """Lower Cholesky factor; filled with NaN where the matrix is not positive definite.

    Libraries disagree (NumPy and PyTorch raise, JAX gives NaN, CuPy depends on its settings);
    here all of them give NaN, which the caller finds in the scalar that it computes anyway.
    """
    if is_numpy_namespace(xp):
        # numpy.linalg.cholesky copies element by element, which takes as long as factorising
        (potrf,) = scipy.linalg.get_lapack_funcs(("potrf",), (matrix,))
        upper, failed = potrf(matrix.T, lower=0, clean=1)
        return xp.full_like(matrix, xp.nan) if failed else upper.T
    try:
        if is_cupy_namespace(xp):
            from cupyx import errstate

            with errstate(linalg="raise"):  # by default a failure may go unnoticed
                return xp.linalg.cholesky(matrix)
        return xp.linalg.cholesky(matrix)
    except Exception as error:
        if type(error).__name__ not in ("LinAlgError", "_LinAlgError"):
            raise
        return xp.full_like(matrix, xp.nan)


def solve_triangular(lower: Array, right: Array, xp: Any) -> Array:
    """Solve ``lower @ x = right`` for a lower triangular matrix and several right-hand sides."""
    if is_numpy_namespace(xp):
        # C-ordered arrays are the transposes of what BLAS reads: x^T = right^T lower^-T.
        trsm = scipy.linalg.get_blas_funcs("trsm", (lower, right))
        return trsm(1.0, lower.T, right.T, side=1, lower=0).T
    if is_torch_namespace(xp):
        return xp.linalg.solve_triangular(lower, right, upper=False)
    if is_jax_namespace(xp):
        from jax.scipy.linalg import solve_triangular as solve

        return solve(lower, right, lower=True)
    if is_cupy_namespace(xp):
        from cupyx.scipy.linalg import solve_triangular as solve

        return solve(lower, right, lower=True, check_finite=False)
    return xp.linalg.solve(lower, right)


def invert_triangular(lower: Array, xp: Any) -> Array:
    """Inverse of a lower triangular matrix."""
    if is_numpy_namespace(xp):
        (trtri,) = scipy.linalg.get_lapack_funcs(("trtri",), (lower,))
        inverse, _ = trtri(lower.T, lower=0)
        return inverse.T
    return solve_triangular(lower, identity(lower.shape[0], lower, xp), xp)


def log_determinant(lower: Array, xp: Any) -> Array:
    """Log determinant of L Lᵀ."""
    return 2 * xp.sum(xp.log(xp.linalg.diagonal(lower)))


@functools.lru_cache(maxsize=8)
def packed_order(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Order in which a symmetric matrix is packed into its m(m+1)/2 different entries.

    The flat index of each packed entry, the place of each entry of the matrix among the packed,
    flat too, and where the packed hold the diagonal. The order is LAPACK's rectangular full packed
    format, in which factorisations of packed matrices are as fast as of full ones.
    """
    matrix = np.arange(float(size**2)).reshape(size, size)
    held = scipy.linalg.lapack.dtrttf(matrix.T, uplo="L")[0].astype(np.int64)
    rows, columns = np.divmod(held, size)
    place = np.empty((size, size), dtype=np.int64)
    place[rows, columns] = place[columns, rows] = np.arange(len(held))
    return held, place.reshape(-1), np.flatnonzero(rows == columns)


def invert_packed(packed: Array, right: Array, xp: Any) -> tuple[Array, Array, Array]:
    """Log determinant of a packed positive definite matrix, A⁻¹ times a vector, and A⁻¹ packed.

    Consumes ``packed``. NaN where the matrix is not positive definite.
    """
    size = right.shape[0]
    held, place, diagonal = packed_order(size)
    if is_numpy_namespace(xp):
        names = ("pftrf", "pftrs", "pftri")
        factorise, solve, invert = scipy.linalg.get_lapack_funcs(names, (packed,))
        lower, failed = factorise(size, packed, uplo="L", overwrite_a=1)
        if failed:
            return xp.asarray(xp.nan), right, packed
        log_det = 2 * np.log(lower[diagonal]).sum()
        solved, _ = solve(size, lower, right[:, None], uplo="L")
        inverse, _ = invert(size, lower, uplo="L", overwrite_a=1)
        return log_det, solved[:, 0], inverse
    matrix = xp.take(packed, from_host(place, packed, xp.int64), axis=0)
    lower = cholesky(xp.reshape(matrix, (size, size)), xp)
    root = invert_triangular(lower, xp)
    inverse = xp.matmul(xp.matrix_transpose(root), root)
    entries = xp.take(xp.reshape(inverse, (-1,)), from_host(held, packed, xp.int64), axis=0)
    return log_determinant(lower, xp), xp.matmul(inverse, right), entries
