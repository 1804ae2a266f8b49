import subprocess
import sys

import array_api_compat
import numpy as np
import pytest

from pathkernel_core.arrays import backend
from pathkernel_core.system.errors import PrecisionError

pytestmark = pytest.mark.version


@pytest.fixture
def namespace(library):
    return array_api_compat.array_namespace(library.array([1.0]))


def test_values_travel_to_a_library_and_back(library, generator):
    values = generator.standard_normal((3, 4))
    for dtype in ("float32", "float64"):
        remote = backend.from_host(values, library.array([1.0], dtype))
        assert library.owns(remote)
        assert str(remote.dtype).endswith(dtype)
        back = backend.to_host(remote)
        assert isinstance(back, np.ndarray)
        np.testing.assert_array_equal(back, values.astype(dtype))


def test_cholesky_factor_or_nan(library, namespace, generator):
    rows = generator.standard_normal((5, 8))
    matrix = rows @ rows.T
    lower = library.numpy(backend.cholesky(library.array(matrix), namespace))
    np.testing.assert_allclose(lower @ lower.T, matrix, atol=1e-13)
    np.testing.assert_array_equal(lower, np.tril(lower))
    failed = backend.cholesky(library.array(-matrix), namespace)
    assert np.isnan(library.numpy(failed)).any()


def test_triangular_routines(library, namespace, generator):
    lower = np.tril(generator.standard_normal((5, 5))) + 3 * np.eye(5)
    right = generator.standard_normal((5, 2))
    for order in "CF":
        passed = library.array(np.asarray(lower, order=order))
        solved = backend.solve_triangular(passed, library.array(right), namespace)
        np.testing.assert_allclose(lower @ library.numpy(solved), right, atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 5, 8])  # the halves of some are empty or unequal
def test_inverses_from_a_triangular_matrix(library, namespace, generator, size):
    lower = np.tril(generator.standard_normal((size, size))) + 3 * np.eye(size)
    root = backend.invert_triangular(library.array(lower), namespace)
    np.testing.assert_allclose(library.numpy(root) @ lower, np.eye(size), atol=1e-13)
    inverse = library.numpy(backend.inverse_from_root(root, namespace))
    np.testing.assert_allclose(inverse @ lower @ lower.T, np.eye(size), atol=1e-12)


@pytest.mark.parametrize("size", [4, 5])  # LAPACK's packed format differs for odd sizes
def test_packed_matrices_are_inverted(library, namespace, generator, size):
    rows = generator.standard_normal((size, 8))
    matrix, right = rows @ rows.T, generator.standard_normal(size)
    matrix = (matrix + matrix.T) / 2
    stored, position, diagonal = backend.packed_order(size)
    packed = matrix.reshape(-1)[stored]
    np.testing.assert_array_equal(packed[position].reshape(size, size), matrix)
    np.testing.assert_array_equal(np.sort(packed[diagonal]), np.sort(matrix.diagonal()))
    packed, right_there, shift = map(library.array, (packed, right, 0.3))
    log_det, solved, reduced = backend.invert_packed(packed, shift, right_there, namespace)
    matrix += 0.3 * np.eye(size)
    assert float(log_det) == pytest.approx(np.linalg.slogdet(matrix)[1], rel=1e-12)
    reference = np.linalg.inv(matrix)
    np.testing.assert_allclose(library.numpy(solved), reference @ right, rtol=1e-9)
    expected = reference - np.outer(reference @ right, reference @ right)
    unpacked = library.numpy(reduced)[position].reshape(size, size)
    np.testing.assert_allclose(unpacked, expected, rtol=1e-9, atol=1e-9 * abs(expected).max())
    log_det, _, _ = backend.invert_packed(-packed, shift, right_there, namespace)
    assert np.isnan(float(log_det))


def test_batches_fill_an_array(library, namespace):
    parts = [library.array(np.full((rows, 2), float(rows)), "float32") for rows in (1, 3, 2)]
    array = backend.fill_rows(iter(parts), 6)
    assert array.dtype == parts[0].dtype
    np.testing.assert_array_equal(library.numpy(array)[:, 1], [1, 3, 3, 3, 2, 2])
    np.testing.assert_array_equal(library.numpy(backend.fill_rows(parts[:1], 1)), [[1, 1]])


def test_identity_and_diagonal(library, namespace):
    like = library.array([1.0], "float32")
    eye = backend.identity(3, like, namespace)
    assert eye.dtype == like.dtype
    np.testing.assert_array_equal(library.numpy(eye), np.eye(3))
    shifted = backend.add_to_diagonal(library.array(np.ones((3, 3))), 0.5, namespace)
    np.testing.assert_array_equal(library.numpy(shifted), np.ones((3, 3)) + 0.5 * np.eye(3))


@pytest.mark.parametrize(("total", "size"), [(0, 3), (1, 3), (6, 3), (7, 3), (7, 100)])
def test_batches_cover_everything_once(total, size):
    covered = [index for batch in backend.batches(total, size) for index in range(total)[batch]]
    assert covered == list(range(total))


def test_integers_become_floats_and_complex_numbers_are_refused(library):
    complete = library.array(np.arange(3), "int64")
    assert str(backend.real_floating("x", complete).dtype).endswith("float64")
    with pytest.raises(
        TypeError, match=r"x must be float64 or float32, but has dtype .*complex128"
    ):
        backend.real_floating("x", library.array([1.0], "complex128"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(library, value):
    with pytest.raises(
        ValueError,
        match=r"x of shape \(2,\) holds NaN or infinity in 1 of 2 entries, first at index \(1\)",
    ):
        backend.real_floating("x", library.array([1.0, value]))


@pytest.mark.parametrize("value", [[1.0, 2.0], (1.0,), 3.0, "text", None])
def test_what_is_no_array_is_refused(value):
    with pytest.raises(TypeError, match=f"x must be an array .* not {type(value).__name__}"):
        backend.array_namespace(x=value)


def test_mixed_libraries_are_refused(library):
    if library.name == "numpy":
        pytest.skip("needs a second library")
    with pytest.raises(TypeError, match=r"one is an array of .* but two is an array of numpy"):
        backend.array_namespace(one=library.array([1.0]), two=np.ones(1))


@pytest.mark.backend
def test_mixed_devices_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="one lies on device cpu but two on meta; move one"):
        backend.array_namespace(one=torch.ones(1), two=torch.ones(1, device="meta"))


@pytest.mark.backend
def test_devices_of_the_strict_library_are_told_apart():
    strict = pytest.importorskip("array_api_strict")
    alternative = strict.asarray([1.0], device=strict.Device("device1"))
    with pytest.raises(TypeError, match=r"one lies on device .* but two on .*device1"):
        backend.array_namespace(one=strict.asarray([1.0]), two=alternative)


@pytest.mark.backend
def test_jax_in_single_precision_is_refused():
    pytest.importorskip("jax")
    program = """
import os; os.environ["JAX_ENABLE_X64"] = "0"; os.environ["JAX_PLATFORMS"] = "cpu"
import jax.numpy as jnp, pathkernel_core as pk
try:
    pk.Problem(jnp.ones((2, 1, 3)), jnp.ones(2))
except pk.PrecisionError as error:
    assert isinstance(error, TypeError)
    assert "JAX_ENABLE_X64=1" in str(error), error
    assert "jax_enable_x64" in str(error), error
    import jax
    assert not jax.config.jax_enable_x64, "the user's flag was flipped"
else:
    raise SystemExit("single precision was accepted")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_precision_error_is_a_type_error():
    assert issubclass(PrecisionError, TypeError)


def test_library_names(library, namespace):
    expected = {"array-api-strict": "array_api_strict", "jax": "jax"}.get(
        library.name, library.name
    )
    assert backend.library_name(namespace) == expected
