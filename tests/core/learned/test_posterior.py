"""The density of queries and keys, and its gradient by hand, against the theory's formulas."""

import math

import formulas
import numpy as np
import pytest
import scipy.stats

import pathkernel_core as pk

READOUTS = {"first": 0, "last": -1, "mean": None, 2: 2}
TOKENS, WIDTH = 5, 4


def examples(outputs, seed=0):
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((14, TOKENS, WIDTH))
    return inputs, np.sign(generator.standard_normal((14, outputs)))


def two_layers(seed=1):
    """Two heads of queries and keys of rank 3 below two of another form."""
    draw = np.random.default_rng(seed).standard_normal
    queries_and_keys = pk.QueryKey(draw((2, 3, WIDTH)), draw((2, 3, WIDTH)), scale=0.4)
    return {
        "queries and keys": [
            queries_and_keys,
            pk.QueryKey(draw((2, 2, WIDTH)), draw((2, 2, WIDTH))),
        ],
        "products": [pk.AttentionProduct(draw((2, WIDTH, WIDTH)), 0.3), queries_and_keys],
        "key vectors": [queries_and_keys, pk.KeyVectors(draw((2, WIDTH)))],
    }


def posterior(form, readout="last", outputs=2, skips=(None, 0.7), **options):
    inputs, labels = examples(outputs)
    variances = (0.8, 1.2, 1.2, 0.9)
    network = pk.Network((2, 2), 20, variances, outputs, skips)
    options = {"variances": (1.5, 0.6), "tolerance": 1e-11, **options}
    layers = two_layers()[form]
    return pk.AttentionPosterior(inputs, labels, layers, network, 0.3, readout=readout, **options)


def test_key_vectors_attend_by_their_products_with_tokens(library, generator):
    inputs, vectors = (
        generator.standard_normal((3, TOKENS, WIDTH)),
        generator.normal(size=(2, WIDTH)),
    )
    layer = pk.KeyVectors(library.array(vectors))
    complete = library.numpy(layer.attention(library.array(inputs)))
    for head, vector in enumerate(vectors):
        omega = formulas.softmax_attention(inputs, lambda key, _, v=vector: key @ v / WIDTH**0.5)
        np.testing.assert_allclose(complete[:, head], omega, rtol=0, atol=1e-14)
    column = library.numpy(layer.attention(library.array(inputs), query=1))
    np.testing.assert_allclose(column, complete[..., 1:2], rtol=0, atol=1e-14)


def test_the_density_is_evidence_times_prior():
    """Exact at infinite width, where the labels are jointly Gaussian."""
    inputs, labels = examples(1)
    queries, keys = np.random.default_rng(5).standard_normal((2, 2, 3, WIDTH))
    network = pk.Network((2,), math.inf, (0.8, 1.2, 0.9))
    layers = [pk.QueryKey(queries, keys)]
    of_heads = pk.AttentionPosterior(
        inputs, labels[:, 0], layers, network, 0.3, variances=[(2.0, 0.5)], readout="mean"
    )
    scale = 1 / (WIDTH * math.sqrt(3))
    omega = [
        formulas.softmax_attention(
            inputs, lambda s, t, h=h: (keys[h] @ s) @ (queries[h] @ t) * scale
        )
        for h in range(2)
    ]
    xi = formulas.attentioned_inputs(inputs, [np.stack(omega, 1)], np.full(TOKENS, 1 / TOKENS))
    kernel = formulas.kernel(xi, xi, 1.2 * 0.9 * np.eye(2), variance=0.8) + 0.3 * np.eye(14)
    evidence = scipy.stats.multivariate_normal(np.zeros(14), kernel).logpdf(labels[:, 0])
    position = of_heads.start
    expected = np.concatenate([queries.ravel() / 2.0**0.5, keys.ravel() / 0.5**0.5])
    np.testing.assert_allclose(position, expected, rtol=1e-14)
    density = of_heads.evaluate(position)
    assert density.log_evidence == pytest.approx(evidence, rel=1e-12)
    prior = scipy.stats.norm.logpdf(position).sum()
    assert density.log_density == pytest.approx(evidence + prior, rel=1e-12)


@pytest.mark.parametrize("space", ["examples", "features"])
@pytest.mark.parametrize("skips", [None, (None, 0.7), (0.4, None), 0.6], ids=str)
@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("form", two_layers())
def test_the_gradient_is_that_of_differences(form, readout, skips, space):
    of_heads = posterior(form, readout, skips=skips, space=space)
    generator = np.random.default_rng(3)
    position, direction = generator.standard_normal((2, of_heads.dimension))
    here = of_heads.evaluate(position)

    def along(step):
        return of_heads.evaluate(position + step * direction, here.solution).log_density

    step = 2e-4
    slope = 8 * (along(step) - along(-step)) - (along(2 * step) - along(-2 * step))
    assert here.gradient @ direction == pytest.approx(slope / (12 * step), rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("form", two_layers())
def test_the_gradient_is_that_of_automatic_differentiation(form, readout):
    """PyTorch's, through softmax, contraction and the minimum of the action."""
    torch = pytest.importorskip("torch")
    of_heads = posterior(form, readout)
    position = np.random.default_rng(4).standard_normal(of_heads.dimension)
    inputs, labels = map(torch.asarray, (of_heads.inputs, of_heads.labels))
    x = torch.tensor(position, requires_grad=True)
    log_density = differentiated(of_heads, x, inputs, labels, torch)
    (gradient,) = torch.autograd.grad(log_density, x)
    actual = of_heads.evaluate(position)
    assert actual.log_density == pytest.approx(float(log_density.detach()), rel=1e-10)
    np.testing.assert_allclose(actual.gradient, gradient.numpy(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("form", two_layers())
def test_the_gradient_is_that_of_jax(form):
    jax = pytest.importorskip("jax")
    of_heads = posterior(form, "mean", space="features")
    position = np.random.default_rng(4).standard_normal(of_heads.dimension)
    inputs, labels = map(jax.numpy.asarray, (of_heads.inputs, of_heads.labels))

    def log_density(x):
        return differentiated(of_heads, x, inputs, labels, jax.numpy)

    value, gradient = jax.jit(jax.value_and_grad(log_density))(jax.numpy.asarray(position))
    actual = of_heads.evaluate(position)
    assert actual.log_density == pytest.approx(float(value), rel=1e-10)
    np.testing.assert_allclose(actual.gradient, gradient, rtol=1e-7, atol=1e-7)


def differentiated(of_heads, x, inputs, labels, xp):
    """Log density at x, by arrays that carry derivatives."""
    arrays, start = [], 0
    for layer, variance in zip(of_heads.layers, (1.5, 0.6)):
        names = [
            name for name in ("queries", "keys", "products", "vectors") if hasattr(layer, name)
        ]
        of_layer = []
        for name in names:
            shape = getattr(layer, name).shape
            size = math.prod(shape)
            of_layer.append(xp.reshape(variance**0.5 * x[start : start + size], shape))
            start += size
        arrays.append(type(layer)(*of_layer, layer.scale))
    assert start == len(x)
    network = of_heads.network
    xi = pk.attentioned_inputs(inputs, arrays, of_heads.readout, skips=network.skips)
    solution = pk.differentiable_solution(xi, labels, network, 0.3, tolerance=1e-11)
    return solution.log_evidence - 0.5 * (xp.sum(x**2) + len(x) * math.log(2 * math.pi))


def test_heads_may_be_relabelled():
    """Heads of a layer swapped swap their gradients, and nothing else."""
    of_heads = posterior("queries and keys")
    position = np.random.default_rng(6).standard_normal(of_heads.dimension)
    here = of_heads.evaluate(position)
    layers = of_heads.layers_at(position)
    swapped = of_heads.position_of([layers[0].keep_heads([2, 1]), layers[1]])
    assert not np.allclose(position, swapped)
    there = of_heads.evaluate(swapped)
    assert there.log_density == pytest.approx(here.log_density, rel=1e-10)
    gradient = of_heads.position_of(
        [
            layer.keep_heads([2, 1]) if number == 0 else layer
            for number, layer in enumerate(of_heads.layers_at(here.gradient))
        ]
    )
    np.testing.assert_allclose(there.gradient, gradient, rtol=1e-7, atol=1e-7)
    u = here.solution.order_parameter.reshape(2, 3, 2, 2, 3, 2)  # with the skip of layer 2
    np.testing.assert_allclose(
        there.solution.order_parameter.reshape(u.shape),
        u[::-1][:, :, :, ::-1],
        rtol=1e-6,
        atol=1e-8,
    )


def test_the_gradient_does_not_turn_queries_and_keys():
    """A common rotation of queries and keys changes nothing: the gradient is normal to it."""
    of_heads = posterior("queries and keys")
    position = np.random.default_rng(6).standard_normal(of_heads.dimension)
    here = of_heads.evaluate(position)
    queries, keys = position[:48].reshape(2, 2, 3, WIDTH)
    gradients = here.gradient[:48].reshape(2, 2, 3, WIDTH)
    turned = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    for head in range(2):
        along = np.sum(gradients[0, head] * (turned @ queries[head]))
        along += np.sum(gradients[1, head] * (turned @ keys[head]))
        assert along == pytest.approx(0, abs=1e-10)


def test_every_library_gives_the_same_density(library):
    expected = posterior("key vectors", "mean")
    position = np.random.default_rng(7).standard_normal(expected.dimension)
    layers = [layer.convert(library.array) for layer in expected.layers]
    actual = pk.AttentionPosterior(
        library.array(expected.inputs),
        library.array(expected.labels),
        layers,
        expected.network,
        0.3,
        variances=(1.5, 0.6),
        readout="mean",
        tolerance=1e-11,
    )
    here, there = expected.evaluate(position), actual.evaluate(position)
    assert there.log_density == pytest.approx(here.log_density, rel=1e-11)
    np.testing.assert_allclose(there.gradient, here.gradient, rtol=1e-8, atol=1e-9)
    assert all(
        library.owns(layer.convert(lambda a: a)._arrays and getattr(layer, layer._arrays[0]))
        for layer in actual.layers_at(position)
    )


def test_given_heads_stay():
    of_heads = posterior("key vectors", variances=(None, 0.6))
    alone = posterior("key vectors")
    assert of_heads.dimension == 2 * WIDTH
    position = np.random.default_rng(8).standard_normal(of_heads.dimension)
    layers = of_heads.layers_at(position)
    np.testing.assert_array_equal(layers[0].queries, two_layers()["key vectors"][0].queries)
    whole = alone.evaluate(alone.position_of(layers))
    part = of_heads.evaluate(position)
    assert part.log_evidence == pytest.approx(whole.log_evidence, rel=1e-12)
    np.testing.assert_allclose(part.gradient, whole.gradient[-2 * WIDTH :], rtol=1e-9, atol=1e-9)


def test_batches_of_examples_sum_up(monkeypatch):
    of_heads = posterior("products")
    position = np.random.default_rng(9).standard_normal(of_heads.dimension)
    whole = of_heads.evaluate(position)
    monkeypatch.setattr("pathkernel_core.paths.pullback.BATCH_ELEMENTS", 1000)
    parts = of_heads.evaluate(position)
    np.testing.assert_allclose(parts.gradient, whole.gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variances": (1.0,)}, "variances must be one for all or one for each of 2 layers"),
        (
            {"variances": (1.0, (1.0, 2.0, 3.0))},
            "variances of layer 2 must be one number or one for",
        ),
        ({"variances": (1.0, -1.0)}, "each of variances must be positive"),
        ({"variances": None}, "no layer has parameters to learn"),
        ({"temperature": 0}, "temperature must be positive"),
        ({"network": pk.Network((2, 1), 20)}, r"network has heads \(2, 1\), but layers have"),
        ({"network": pk.Network((2, 2), 3)}, "width N_1 = 3 is smaller than the size 4 of its"),
    ],
)
def test_arguments_are_checked(change, message):
    inputs, labels = examples(1)
    arguments = {"network": pk.Network((2, 2), 20), "temperature": 0.3, **change}
    with pytest.raises(ValueError, match=message):
        pk.AttentionPosterior(inputs, labels, two_layers()["key vectors"], **arguments)


def test_positions_are_checked():
    of_heads = posterior("key vectors")
    with pytest.raises(ValueError, match=r"position must have shape \(56,\), but has \(3,\)"):
        of_heads.evaluate(np.zeros(3))
    with pytest.raises(ValueError, match=r"position of shape .* holds NaN or infinity"):
        of_heads.evaluate(np.full(56, np.nan))
    layers = two_layers()["queries and keys"]
    with pytest.raises(ValueError, match="vectors of layer 2 must have shape"):
        of_heads.position_of([layers[0], pk.KeyVectors(np.zeros((3, WIDTH)))])


def test_gradients_by_inputs_refuse_kernels_and_other_shapes():
    inputs, layers = examples(1)[0], two_layers()["products"]
    with pytest.raises(ValueError, match="xi_gradient must have shape"):
        pk.attention_gradients(inputs, layers, np.zeros((14, 3, WIDTH)))
    matrices = pk.Attention(np.full((14, 2, TOKENS, TOKENS), 1 / TOKENS))
    given, learned = pk.attention_gradients(inputs, [matrices, layers[1]], np.ones((14, 4, WIDTH)))
    assert given is None
    assert [gradient.shape for gradient in learned] == [(2, 3, WIDTH)] * 2


@pytest.mark.parametrize("seed", range(4))
def test_gradients_of_linear_attention_are_those_of_differences(seed):
    """Of layers of random forms, each linear or not."""
    generator = np.random.default_rng(seed)
    inputs, labels = generator.normal(size=(9, 4, 3)), generator.normal(size=9)
    forms = [
        lambda linear: pk.KeyVectors(np.zeros((2, 3)), linear=linear),
        lambda linear: pk.AttentionProduct(np.zeros((2, 3, 3)), linear=linear),
        lambda linear: pk.QueryKey(*np.zeros((2, 2, 2, 3)), linear=linear),
    ]
    first, second = (forms[number] for number in generator.integers(3, size=2))
    layers = [first(bool(generator.integers(2))), second(True)]
    posterior = pk.AttentionPosterior(inputs, labels, layers, pk.Network((2, 2), 30), 0.3)
    assert posterior.layers_at(posterior.start)[1].linear
    x, direction = generator.normal(size=(2, posterior.dimension))
    ahead, behind = (posterior.evaluate(x + sign * 1e-4 * direction) for sign in (1, -1))
    slope = (ahead.log_density - behind.log_density) / 2e-4
    assert posterior.evaluate(x).gradient @ direction == pytest.approx(slope, rel=1e-5, abs=1e-5)
