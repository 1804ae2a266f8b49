"""Settings of the process that lower precision, or forbid what the theory needs."""

import re
import warnings

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.arrays.products import full_precision, matmul, vecdot
from pathkernel_core.energy.statistics import batch_sums

NETWORK = pk.Network((2, 2), 10)


@pytest.fixture
def examples(generator):
    return generator.normal(size=(20, 4, 5)), np.sign(generator.normal(size=20))


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_autocast_reaches_no_product(examples, kind):
    torch = pytest.importorskip("torch")
    xi, labels = (torch.tensor(part, dtype=torch.float32) for part in examples)
    heads = xi[:2, :, :4]

    def computed():
        attended = pk.attentioned_inputs(xi[..., :4], [pk.AttentionProduct(heads)])
        results = [attended, matmul(xi, xi.mT), vecdot(xi, xi)]
        for space in ("examples", "features", "kernels"):
            problem = pk.Problem(xi, labels, space)
            solution = pk.minimise_action(problem, NETWORK, 0.1)
            prediction = solution.predict(xi[:3])
            results += [solution.order_parameter, prediction.mean, prediction.variance]
        differentiable = pk.differentiable_solution(xi, labels, NETWORK, 0.1)
        return [*results, differentiable.action, differentiable.predict(xi[:3]).mean]

    expected = computed()
    with torch.autocast("cpu", dtype=getattr(torch, kind)):
        assert matmul(xi, xi.mT).dtype == torch.float32
        assert torch.matmul(xi, xi.mT).dtype != torch.float32  # the context has an effect
        for result, value in zip(computed(), expected, strict=True):
            assert result.dtype == torch.float32
            torch.testing.assert_close(result, value, rtol=0, atol=0)


def test_settings_of_float32_products_are_restored():
    torch = pytest.importorskip("torch")
    matrices = torch.eye(3)
    setting = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with full_precision(matrices):
            assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "medium"
        with pytest.raises(RuntimeError):
            matmul(matrices, torch.eye(2))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(setting)


@pytest.mark.parametrize("setting", ["bfloat16", "tensorfloat32", "float32"])
def test_the_default_precision_of_jax_reaches_no_product(examples, setting):
    jax = pytest.importorskip("jax")
    xi, labels = (jax.numpy.asarray(part, dtype="float32") for part in examples)
    with jax.default_matmul_precision(setting):
        lowered = str(jax.make_jaxpr(batch_sums)(xi, labels[:, None]))
    precisions = set(re.findall(r"precision=(.*)", lowered))
    assert precisions == {"(Precision.HIGHEST, Precision.HIGHEST)"}


def test_what_jax_cannot_map_is_named(examples):
    jax = pytest.importorskip("jax")
    xi, labels = map(jax.numpy.asarray, examples)

    def action(temperature):
        return pk.differentiable_solution(xi, labels, NETWORK, temperature).action

    for function in (action, jax.grad(action)):
        with pytest.raises(TypeError, match=r"jax.vmap cannot map over a minimisation.* in a loop"):
            jax.vmap(function)(jax.numpy.asarray([0.1, 0.3]))


def test_a_scalar_of_numpy_is_a_temperature(examples):
    torch = pytest.importorskip("torch")
    xi, labels = map(torch.tensor, examples)
    for value in (np.float32(0.5), np.array(0.5), 0.5):
        solution = pk.differentiable_solution(xi, labels, NETWORK, value)
        expected = pk.minimise_action(pk.Problem(xi, labels), NETWORK, 0.5).action
        assert float(solution.action) == pytest.approx(expected, rel=1e-6)


def test_what_jax_forbids_is_named(examples):
    jax = pytest.importorskip("jax")
    xi, labels = map(jax.numpy.asarray, examples)
    with (
        jax.numpy_rank_promotion("raise"),
        pytest.raises(RuntimeError, match=r"call it within jax.numpy_rank_promotion\('allow'\)"),
    ):
        pk.Problem(xi, labels)
    for guard in (jax.transfer_guard, jax.transfer_guard_host_to_device):
        with (
            guard("disallow"),
            pytest.raises(RuntimeError, match=r"call it within jax.transfer_guard\('allow'\)"),
        ):
            pk.Problem(xi, labels)


def test_what_torch_cannot_map_is_named(examples):
    torch = pytest.importorskip("torch")
    xi, labels = map(torch.tensor, examples)
    with pytest.raises(TypeError, match=r"torch.func.vmap cannot map over a minimisation"):
        torch.func.vmap(lambda t: pk.differentiable_solution(xi, labels, NETWORK, t).action)(
            torch.tensor([0.1, 0.3], dtype=torch.float64)
        )


def test_sparse_nested_and_absent_tensors_are_named():
    torch = pytest.importorskip("torch")
    dense = torch.ones(3, 2, 2, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, which calls both forms experimental
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        sparse = dense.to_sparse()
    for tensor, words in (
        (sparse, "xi must be a dense tensor, but is torch.sparse_coo"),
        (nested, "xi must be a dense tensor, but is nested"),
        (dense.to("meta"), "xi lies on device meta"),
    ):
        with pytest.raises(TypeError, match=words):
            pk.Problem(tensor, tensor)


def test_texts_and_labels_that_overflow_are_named(examples):
    xi, labels = examples
    texts = np.array(["1"] * 20, dtype=np.dtypes.StringDType())
    with pytest.raises(TypeError, match="labels must be float64 or float32, but has dtype String"):
        pk.Problem(xi, texts)
    with pytest.raises(ValueError, match=r"the sum of squared labels of shape .* overflows"):
        pk.Problem(xi, 1e200 * labels)
    for call in (
        lambda: pk.path_kernel(1e200 * xi, xi * 1e200, 0, 1),
        lambda: pk.same_path_kernels(1e200 * xi),
        lambda: pk.total_kernel(1e200 * xi, np.eye(4)),
        lambda: pk.SufficientStatistics.of(1e200 * xi, labels),
    ):
        with pytest.raises(ValueError, match="overflows; rescale"):
            call()


def test_floating_point_errors_that_are_raised_elsewhere_change_nothing(examples):
    """``np.seterr(all="raise")`` of a user's program."""
    xi, labels = examples
    heads = 30 * xi[:2, :, :4]
    layers = [pk.AttentionProduct(heads), pk.QueryKey(heads, heads)]

    def computed():
        problem = pk.Problem(xi, labels)
        solution = pk.minimise_action(problem, NETWORK, 1e-3)
        attended = pk.attentioned_inputs(xi[..., :4], layers, "mean")
        return solution.action, solution.predict(xi).variance, attended

    expected = computed()
    with np.errstate(all="raise"):
        for result, value in zip(computed(), expected, strict=True):
            np.testing.assert_array_equal(result, value)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_that_underflow_are_named(examples, dtype):
    xi = examples[0].astype(dtype)
    calls = (
        lambda xi: pk.path_kernel(xi, xi, 0, 1),
        pk.same_path_kernels,
        lambda xi: pk.total_kernel(xi, np.eye(4)),
    )
    for call in calls:
        call(xi), call(0 * xi)
        with pytest.raises(ValueError, match=f"the kernels underflow in {dtype}.* rescale xi"):
            call(xi * np.finfo(dtype).smallest_normal ** 0.5)


@pytest.mark.parametrize("space", ["auto", "features", "kernels"])
@pytest.mark.parametrize("shared", [True, False])
def test_inputs_that_overflow_raise_without_warnings_of_numpy(examples, space, shared):
    xi, labels = examples
    network = pk.Network((2, 2) if shared else (4,), 10, shared=shared)
    for minimise in (pk.minimise_action, pk.gp_limit):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises((ValueError, pk.NotPositiveDefiniteError), match=r"overflows.* res"):
                minimise(pk.Problem(1e160 * xi, labels, space), network, 0.1)
