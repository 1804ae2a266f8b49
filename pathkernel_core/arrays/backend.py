"""Array libraries: common namespace of arguments, conversions, and routines outside the standard.

The rest of the core uses only the Python array API standard.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import array_api_compat
import numpy as np
import scipy  # loads its modules lazily
from array_api_compat import (
    is_cupy_namespace,
    is_jax_namespace,
    is_numpy_namespace,
    is_torch_namespace,
)

from pathkernel_core.arrays.products import matmul
from pathkernel_core.system.errors import PrecisionError

Array = Any
"""An array of any library that follows the Python array API standard."""

_SMALL = 2**17  # elements of a JAX array that is checked on the host, 1 MiB in float64
_HALVED = 1024  # columns from which a symmetric product is computed by blocks


@functools.cache
def _numpy_namespace() -> Any:
    # not with this module: it imports numpy.f2py and numpy.testing, a quarter of `--help`
    return array_api_compat.array_namespace(np.empty(0))


def array_namespace(**arrays: Array) -> Any:
    """Namespace shared by the arrays, passed as keyword arguments under the caller's names.

    Raises
    ------
    TypeError
        If an argument is no array, or the arrays are of different libraries or devices.
    PrecisionError
        If the arrays are JAX's and its 64-bit mode is off.
    """
    if all(type(array) is np.ndarray for array in arrays.values()):
        return _numpy_namespace()  # fast path of small problems
    namespaces = {name: _namespace(name, array) for name, array in arrays.items()}
    first, xp = next(iter(namespaces.items()))
    for name, namespace in namespaces.items():
        if namespace is not xp:
            raise TypeError(
                f"{first} is an array of {library_name(xp)} but {name} is an array of "
                f"{library_name(namespace)}; convert one of them so that both use one library"
            )
    devices = {
        name: array_api_compat.device(array)
        for name, array in arrays.items()
        if not is_tracer(array)
    }
    first = next(iter(devices), "")
    for name, device in devices.items():
        if device != devices[first]:
            raise TypeError(
                f"{first} lies on device {devices[first]} but {name} on {device}; "
                "move one of them with array_api_compat.to_device"
            )
    if str(devices.get(first)) == "meta":
        raise TypeError(
            f"{first} lies on device meta, where it has no values; load it onto a device"
        )
    if is_jax_namespace(xp) and not sys.modules["jax"].config.jax_enable_x64:
        raise PrecisionError(
            "JAX's 64-bit mode is off, so that it would compute in float32 silently; set the "
            "environment variable JAX_ENABLE_X64=1, or call "
            "jax.config.update('jax_enable_x64', True) before the first array is made"
        )
    if is_jax_namespace(xp):
        _check_jax_settings(sys.modules["jax"].config)
    return xp


def _check_jax_settings(config: Any) -> None:
    """Raise a RuntimeError if JAX forbids broadcasting, or transfers between host and device."""
    if config.jax_numpy_rank_promotion == "raise":
        raise RuntimeError(
            "jax_numpy_rank_promotion is 'raise', but the theory broadcasts; call it within "
            "jax.numpy_rank_promotion('allow')"
        )
    for direction in ("", "_host_to_device", "_device_to_host"):
        setting = getattr(config, f"jax_transfer_guard{direction}", None)
        if str(setting).startswith("disallow"):
            raise RuntimeError(
                f"jax_transfer_guard{direction} is {setting!r}, but the minimiser runs on the "
                "host; call it within jax.transfer_guard('allow')"
            )


def _namespace(name: str, array: Array) -> Any:
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{name} of shape {array.shape} is a masked array, whose mask would be lost; "
            "leave the masked examples out, or fill them"
        )
    try:
        namespace = array_api_compat.array_namespace(array)
    except TypeError:
        raise TypeError(
            f"{name} must be an array (NumPy, JAX, CuPy, PyTorch or another library of the "
            f"array API standard), not {type(array).__name__}; convert it, for example with "
            "numpy.asarray"
        ) from None
    if is_torch_namespace(namespace) and not _is_dense(array):
        kind = "nested" if array.is_nested else array.layout
        raise TypeError(
            f"{name} must be a dense tensor, but is {kind}; convert it, for example by .to_dense()"
        )
    return namespace


def _is_dense(tensor: Array) -> bool:
    """Whether a tensor of PyTorch is neither sparse nor a list of tensors."""
    return tensor.layout == sys.modules["torch"].strided and not tensor.is_nested


def library_name(xp: Any) -> str:
    """Short name of an array namespace, such as ``"numpy"`` or ``"torch"``."""
    return xp.__name__.removeprefix("array_api_compat.").removesuffix(".numpy")


def real_floating(name: str, array: Array, shape: tuple[int | str, ...] | None = None) -> Array:
    """Check that an array is float64 or float32, finite and of a shape, and return it.

    A string in ``shape`` names a dimension of any positive length. Integers become float64.
    """
    xp = array_api_compat.array_namespace(array)
    actual = tuple(array.shape)
    if shape is not None:
        if len(actual) != len(shape) or any(
            not isinstance(size, str) and size != length for size, length in zip(shape, actual)
        ):
            expected = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
            raise ValueError(f"{name} must have shape ({expected}), but has {actual}")
        if 0 in actual:
            empty = shape[actual.index(0)]
            raise ValueError(f"{name} of shape {actual} is empty: {empty} must not be 0")
    if is_integral(array.dtype, xp):
        array = xp.astype(array, xp.float64)
    if array.dtype not in (xp.float64, xp.float32):
        raise TypeError(
            f"{name} must be float64 or float32, but has dtype {array.dtype}; cast it to float64"
        )
    if not is_true(is_finite(array)):
        wrong = xp.nonzero(~xp.isfinite(array if array.ndim else array[None]))
        first = ", ".join(str(int(index[0])) for index in wrong)
        raise ValueError(
            f"{name} of shape {actual} holds NaN or infinity in {wrong[0].shape[0]} of "
            f"{math.prod(actual)} entries, first at index ({first}); remove or replace those values"
        )
    return array


def is_double(array: Array) -> bool:
    """Whether an array is of float64."""
    return array.dtype == array_api_compat.array_namespace(array).float64


def in_single_precision(array: Array) -> Array:
    """Copy of an array in float32; infinite where its range ends."""
    xp = array_api_compat.array_namespace(array)
    with np.errstate(all="ignore"):
        return xp.astype(array, xp.float32)


def is_integral(dtype: Any, xp: Any) -> bool:
    """Whether a dtype is of integers or truth values."""
    try:
        return xp.isdtype(dtype, ("integral", "bool"))
    except TypeError:  # NumPy's variable-width strings are no dtype of the standard
        return False


def not_overflown(name: str, array: Array, remedy: str) -> Array:
    """Check that a result is finite, and return it."""
    if not is_true(is_finite(array)):
        raise ValueError(f"{name} of shape {tuple(array.shape)} overflows; {remedy}")
    return array


def not_underflown(name: str, *factors: Array, scale: float = 1.0, remedy: str) -> None:
    """Check that a product of the largest entries of arrays has all digits of their dtype.

    Raises
    ------
    ValueError
        If it has not, though no array is zero.
    """
    xp = array_api_compat.array_namespace(*factors)
    largest = [xp.max(xp.abs(factor)) for factor in factors]
    with np.errstate(all="ignore"):
        product = scale * math.prod(largest)
    info = xp.finfo(factors[0].dtype)
    smallest = float(info.smallest_normal) / float(info.eps)
    exist = [entry > 0 for entry in largest]
    if not is_true(~functools.reduce(xp.logical_and, [product < smallest, *exist])):
        raise ValueError(
            f"{name} underflow in {factors[0].dtype}, since they are of the order of the product "
            f"of the largest entries, {' × '.join(f'{float(entry):.2g}' for entry in largest)}; "
            f"{remedy}"
        )


def is_true(condition: Array) -> bool:
    """Truth of a zero-dimensional array; True while JAX traces it."""
    if is_tracer(condition):
        return True
    try:
        return bool(condition)
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        raise TypeError(
            "torch.func.vmap cannot map over a minimisation, which runs on the host; call it in a "
            "loop and stack the results"
        ) from error


def is_finite(array: Array) -> Array:
    """Whether all values are finite, as a zero-dimensional array."""
    xp = array_api_compat.array_namespace(array)
    if is_jax_namespace(xp) and not is_tracer(array) and array.size <= _SMALL:
        array, xp = to_host(array), np  # faster than a compilation for every shape
    return compile_function(_all_finite, xp)(array)


def _all_finite(array: Array) -> Array:
    xp = array_api_compat.array_namespace(array)
    return xp.all(xp.isfinite(array))


def constant(array: Array) -> Array:
    """The array as a constant of automatic differentiation."""
    if array_api_compat.is_torch_array(array):
        return array.detach()
    return sys.modules["jax"].lax.stop_gradient(array) if is_tracer(array) else array


def is_differentiated(array: Array) -> bool:
    """Whether PyTorch records gradients of the array, or JAX traces it."""
    if array_api_compat.is_torch_array(array):
        return array.requires_grad and sys.modules["torch"].is_grad_enabled()
    return is_tracer(array)


def is_tracer(array: Array) -> bool:
    """Whether an array has no values, since JAX traces a function of it."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.core.Tracer)


def on_accelerator(array: Array) -> bool:
    """Whether an array lies in the memory of a GPU or the like."""
    if isinstance(array, np.ndarray):
        return False
    if array_api_compat.is_cupy_array(array):
        return True
    device = array_api_compat.device(array)
    kind = getattr(device, "type", None) or getattr(device, "platform", "cpu")
    return kind != "cpu"


def to_host(array: Array) -> np.ndarray:
    """Copy of a small array or result as a NumPy array."""
    if isinstance(array, np.ndarray):
        return array
    if array_api_compat.is_torch_array(array):
        return array.detach().cpu().numpy()
    if array_api_compat.is_cupy_array(array):
        return array.get()
    if array_api_compat.is_jax_array(array) or not hasattr(array, "__dlpack__"):
        return np.asarray(array)
    return np.from_dlpack(array, device="cpu")


def from_host(values: Any, like: Array, dtype: Any = None) -> Array:
    """Array with the library, device and by default the dtype of ``like``.

    Tracers of JAX and tensors of PyTorch are returned unchanged.
    """
    if isinstance(like, np.ndarray):
        return np.asarray(values, dtype=dtype or like.dtype)
    if is_tracer(values) or array_api_compat.is_torch_array(values):
        return values
    xp = array_api_compat.array_namespace(like)
    values, dtype = np.asarray(values), dtype or like.dtype
    if is_tracer(like):  # it has no device; the compiler places constants
        return xp.asarray(values, dtype=dtype)
    device = array_api_compat.device(like)
    if is_jax_namespace(xp):  # asarray would compile a copy for every shape
        return sys.modules["jax"].device_put(values.astype(dtype, copy=False), device)
    return xp.asarray(values, dtype=dtype, device=device)


def batches(total: int, size: int) -> list[slice]:
    """Slices of at most ``size`` that cover ``range(total)``."""
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def rows_of(array: Array, batch: slice, axis: int = 0) -> Array:
    """Rows of a batch along an axis; the array itself if it is the only one."""
    if batch == slice(0, array.shape[axis]):
        return array
    xp = array_api_compat.array_namespace(array)
    if is_jax_namespace(xp):  # it compiles every slice, but indices once
        indices = from_host(np.arange(batch.start, batch.stop), array, xp.int64)
        return xp.take(array, indices, axis=axis)
    return array[(*(slice(None),) * axis, batch, ...)]


def join_batches(parts: Sequence[Array], axis: int = 0) -> Array:
    """Concatenate arrays of batches."""
    if len(parts) == 1:
        return parts[0]
    return array_api_compat.array_namespace(*parts).concat(parts, axis=axis)


def fill_rows(parts: Iterable[Array], rows: int) -> Array:
    """Concatenate batches of rows that are made one after another, without a second copy of all.

    On JAX, and where PyTorch records gradients, with one: their arrays cannot be filled.

    Parameters
    ----------
    parts : iterable of arrays
    rows : int
        Rows of all parts together.
    """
    parts = iter(parts)
    first = next(parts)
    xp = array_api_compat.array_namespace(first)
    if is_jax_namespace(xp) or is_differentiated(first) or first.shape[0] == rows:
        return join_batches([first, *parts])
    device = array_api_compat.device(first)
    array = xp.empty((rows, *first.shape[1:]), dtype=first.dtype, device=device)
    start = 0
    for part in itertools.chain([first], parts):
        array[start : start + part.shape[0], ...] = part
        start += part.shape[0]
    return array


def map_rows(function: Callable, array: Array, xp: Any) -> Any:
    """Results of a function of each row of an array, stacked: an array, or a tuple of them.

    JAX runs it in a loop, so that its program does not grow with the rows.
    """
    if is_jax_namespace(xp):
        return sys.modules["jax"].lax.map(function, array)
    results = [function(array[row, ...]) for row in range(array.shape[0])]
    if isinstance(results[0], tuple):
        return tuple(xp.stack(parts) for parts in zip(*results))
    return xp.stack(results)


def identity(size: int, like: Array, xp: Any) -> Array:
    """Identity matrix with the dtype and device of ``like``."""
    if is_jax_namespace(xp):  # a traced array has no device; the compiler places constants
        return xp.eye(size, dtype=like.dtype)
    return xp.eye(size, dtype=like.dtype, device=array_api_compat.device(like))


def compile_function(function: Callable, xp: Any, static: tuple[str, ...] = ()) -> Callable:
    """Compile ``function`` with ``jax.jit`` for JAX; return it unchanged for other libraries.

    It is compiled for each value of the arguments named in ``static``, which are not arrays.
    """
    return _jit(function, static) if is_jax_namespace(xp) else function


# jax.jit keeps its programs with the object that it returns: a new one for every call would compile
# again. For functions of a module: a closure would be another key each time, and stay.
@functools.cache
def _jit(function: Callable, static: tuple[str, ...]) -> Callable:
    import jax

    return jax.jit(function, static_argnames=static)


def host_callback(function: Callable, shape: tuple[int, ...], *arrays: Array) -> Array:
    """Call a function that returns a NumPy array of this shape; convert it like the first array.

    While JAX traces, the call is deferred until the arrays have values on the host.
    """
    like = arrays[0]
    if not any(map(is_tracer, arrays)):
        return from_host(function(*arrays), like)
    import jax

    result = jax.ShapeDtypeStruct(shape, like.dtype)

    def on_host(*values: Array) -> np.ndarray:
        return np.asarray(function(*map(np.asarray, values)), dtype=like.dtype)

    try:
        return jax.pure_callback(on_host, result, *arrays)
    except NotImplementedError:  # mapping callbacks one by one may wait for itself without end
        raise TypeError(
            "jax.vmap cannot map over a minimisation, which runs on the host; call it in a loop "
            "and stack the results"
        ) from None


def derivatives(xp: Any) -> tuple[Callable, Callable]:
    """Gradient and Hessian with respect to a vector, the first argument, on PyTorch or JAX.

    gradient: function → function; hessian: (function, x, number of columns at once) → matrix.
    """
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
        # reverse over reverse: one forward pass serves all columns, a few of which go back at once
        _, pull_back = vjp(grad(function), x)
        return over_columns(lambda column: pull_back(column)[0], x, columns)

    return grad, hessian


# Routines outside the standard, each dispatched to the best one of its library.


def add_to_diagonal(matrix: Array, value: float, xp: Any) -> Array:
    """Matrix plus ``value`` times the identity. Consumes ``matrix``: it may be changed in place."""
    if is_numpy_namespace(xp):
        matrix.flat[:: matrix.shape[0] + 1] += value
        return matrix
    return matrix + value * identity(matrix.shape[0], matrix, xp)


def gram_matrix(rows: Array, xp: Any) -> Array:
    """Product rowsᵀ rows of a matrix (rows, size), by about half of the operations."""
    transposed = xp.matrix_transpose(rows)
    if is_numpy_namespace(xp) or rows.shape[1] < _HALVED:  # NumPy uses the symmetry
        return matmul(transposed, rows)
    half = rows.shape[1] // 2
    left, right = rows[:, :half], rows[:, half:]
    corner = matmul(transposed[:half, :], right)
    above = xp.concat((gram_matrix(left, xp), corner), axis=1)
    below = xp.concat((xp.matrix_transpose(corner), gram_matrix(right, xp)), axis=1)
    return xp.concat((above, below), axis=0)


def cholesky(matrix: Array, xp: Any) -> Array:
    """Lower Cholesky factor; NaN if the matrix is not positive definite, in every library."""
    if is_numpy_namespace(xp):
        # numpy.linalg.cholesky copies element by element, as slowly as it factorises
        (potrf,) = scipy.linalg.get_lapack_funcs(("potrf",), (matrix,))
        upper, failed = potrf(matrix.T, lower=0, clean=1)
        return xp.full_like(matrix, xp.nan) if failed else upper.T
    try:
        if is_cupy_namespace(xp):
            from cupyx import errstate

            with errstate(linalg="raise"):  # by default a failure may be silent
                return xp.linalg.cholesky(matrix)
        return xp.linalg.cholesky(matrix)
    except Exception as error:
        if type(error).__name__ not in ("LinAlgError", "_LinAlgError"):
            raise
        return xp.full_like(matrix, xp.nan)


def solve_triangular(lower: Array, right: Array, xp: Any) -> Array:
    """Solve ``lower @ x = right`` for a lower triangular matrix and a matrix ``right``."""
    if is_numpy_namespace(xp):
        # BLAS reads C-ordered arrays transposed: x^T = right^T lower^-T.
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
    if is_jax_namespace(xp):
        first, below, last = _halves(lower)
        # XLA has no trtri, and solves against the identity as against any matrix: by halves most of
        # the zeros are left out, which takes half of the time
        first, last = (_solve_identity(block, xp) for block in (first, last))
        below = -matmul(last, matmul(below, first))
        return xp.block([[first, xp.zeros_like(below.T)], [below, last]])
    return _solve_identity(lower, xp)


def _solve_identity(lower: Array, xp: Any) -> Array:
    return solve_triangular(lower, identity(lower.shape[0], lower, xp), xp)


def _halves(lower: Array) -> tuple[Array, Array, Array]:
    """First block on the diagonal of a lower triangular matrix, that below it, and the last."""
    half = lower.shape[0] // 2
    return lower[:half, :half], lower[half:, :half], lower[half:, half:]


def inverse_from_root(root: Array, xp: Any) -> Array:
    """A⁻¹ = L⁻ᵀL⁻¹ from L⁻¹ of A = LLᵀ."""
    if not is_jax_namespace(xp):
        return matmul(xp.matrix_transpose(root), root)
    first, below, last = _halves(root)  # as above: the products of zeros are left out
    corner = matmul(last.T, below)
    first = matmul(first.T, first) + matmul(below.T, below)
    return xp.block([[first, corner.T], [corner, matmul(last.T, last)]])


def inverses_of_triangular(lower: Array, xp: Any) -> Array:
    """Inverses of lower triangular matrices (B, m, m)."""
    if is_torch_namespace(xp):
        return xp.linalg.solve_triangular(lower, identity(lower.shape[1], lower, xp), upper=False)
    if is_jax_namespace(xp):
        return sys.modules["jax"].vmap(lambda matrix: invert_triangular(matrix, xp))(lower)
    return xp.linalg.inv(lower)


def log_determinant(lower: Array, xp: Any) -> Array:
    """Log determinant of L Lᵀ, for one L (m, m) or several (B, m, m)."""
    return 2 * xp.sum(xp.log(xp.linalg.diagonal(lower)), axis=-1)


@functools.lru_cache(maxsize=8)
def packed_order(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices that pack a symmetric matrix into its m(m+1)/2 entries, and back.

    Flat index in the matrix of each packed entry; packed index of each entry of the matrix, flat;
    and packed indices of the diagonal. The order is LAPACK's rectangular full packed format, which
    factorises as fast as full matrices.
    """
    matrix = np.arange(float(size**2)).reshape(size, size)
    entries = scipy.linalg.lapack.dtrttf(matrix.T, uplo="L")[0].astype(np.int64)
    rows, columns = np.divmod(entries, size)
    indices = np.empty((size, size), dtype=np.int64)
    indices[rows, columns] = indices[columns, rows] = np.arange(len(entries))
    return entries, indices.reshape(-1), np.flatnonzero(rows == columns)


def invert_packed(packed: Array, shift: Array, right: Array, xp: Any) -> tuple[Array, Array, Array]:
    """Log det A, A⁻¹y, and A⁻¹ − A⁻¹yyᵀA⁻¹ packed, of A = packed matrix + shift · 1.

    NaN if A is not positive definite.
    """
    size = right.shape[0]
    entries, indices, diagonal = packed_order(size)
    if is_numpy_namespace(xp):
        names = ("pftrf", "pftrs", "pftri", "sfrk")
        factorise, solve, invert, update = scipy.linalg.get_lapack_funcs(names, (packed,))
        matrix = packed.copy()
        matrix[diagonal] += shift
        lower, failed = factorise(size, matrix, uplo="L", overwrite_a=1)
        if failed:
            return xp.asarray(xp.nan), right, matrix
        log_det = 2 * np.log(lower[diagonal]).sum()
        solved, _ = solve(size, lower, right[:, None], uplo="L")
        inverse, _ = invert(size, lower, uplo="L", overwrite_a=1)
        inverse = update(size, 1, -1.0, solved, 1.0, inverse, uplo="L", overwrite_c=1)
        return log_det, solved[:, 0], inverse
    matrix = xp.take(packed, from_host(indices, packed, xp.int64), axis=0)
    matrix = add_to_diagonal(xp.reshape(matrix, (size, size)), shift, xp)
    lower = cholesky(matrix, xp)
    inverse = inverse_from_root(invert_triangular(lower, xp), xp)
    solved = matmul(inverse, right)
    reduced = xp.reshape(inverse - solved[:, None] * solved[None, :], (-1,))
    packed = xp.take(reduced, from_host(entries, packed, xp.int64), axis=0)
    return log_determinant(lower, xp), solved, packed
