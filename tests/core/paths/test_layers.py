import formulas
import numpy as np
import pytest

import pathkernel_core as pk

HEADS = ((2,), (3, 2), (2, 1, 2))
READOUTS = {"first": 0, "last": -1, "mean": "mean", 2: 2, -3: -3}


def readout_weights(readout, tokens):
    if readout == "mean":
        return np.full(tokens, 1 / tokens)
    return np.eye(tokens)[READOUTS[readout]]


def random_layers(heads, width, generator):
    """Products W of keys and queries, (H, N_0, N_0), one per layer."""
    return [2.0 * generator.standard_normal((count, width, width)) / width for count in heads]


def attention_by_loops(inputs, products):
    """Ω (P, H, M, M) of one layer."""
    return np.stack(
        [
            formulas.softmax_attention(inputs, lambda key, query, w=product: key @ w @ query)
            for product in products
        ],
        axis=1,
    )


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("readout", READOUTS)
def test_attentioned_inputs_follow_every_path(library, generator, heads, readout):
    inputs = generator.standard_normal((4, 5, 6))
    products = random_layers(heads, 6, generator)
    omegas = [attention_by_loops(inputs, layer) for layer in products]
    expected = formulas.attentioned_inputs(inputs, omegas, readout_weights(readout, 5))
    layers = [pk.AttentionProduct(library.array(layer)) for layer in products]
    actual = library.numpy(pk.attentioned_inputs(library.array(inputs), layers, readout))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("scale", [None, 0.7])
def test_three_ways_to_give_heads_agree(library, generator, scale):
    inputs = generator.standard_normal((3, 4, 5))
    queries, keys = 3 * generator.standard_normal((2, 2, 6, 5))
    factor = 1 / (5 * np.sqrt(6)) if scale is None else scale  # Eq. 3: 1 / (N_0 √G)
    products = np.einsum("hgi,hgj->hij", keys, queries) * factor
    omega = attention_by_loops(inputs, products)
    passed = {
        "queries and keys": pk.QueryKey(library.array(queries), library.array(keys), scale),
        "product": pk.AttentionProduct(library.array(products)),
        "scaled product": pk.AttentionProduct(library.array(products / 0.3), 0.3),
        "matrices": pk.Attention(library.array(omega)),
    }
    for name, layer in passed.items():
        assert layer.n_heads == 2
        complete = library.numpy(layer.attention(library.array(inputs)))
        np.testing.assert_allclose(complete, omega, rtol=0, atol=1e-14, err_msg=name)
        column = library.numpy(layer.attention(library.array(inputs), query=1))
        np.testing.assert_allclose(column, omega[..., 1:2], rtol=0, atol=1e-14, err_msg=name)


def test_linear_attention_is_the_score_over_the_number_of_tokens(library, generator):
    inputs, vectors = generator.standard_normal((3, 4, 5)), generator.standard_normal((2, 5))
    queries, keys = generator.standard_normal((2, 2, 6, 5))
    products = np.einsum("hgi,hgj->hij", keys, queries)
    expected = 0.7 * np.einsum("psi,hij,ptj->phst", inputs, products, inputs) / 4
    of_vectors = np.repeat(0.7 * np.einsum("hi,psi->phs", vectors, inputs)[..., None] / 4, 4, 3)
    passed = {
        "queries and keys": (pk.QueryKey(queries, keys, 0.7, linear=True), expected),
        "product": (pk.AttentionProduct(products, 0.7, linear=True), expected),
        "vectors": (pk.KeyVectors(vectors, 0.7, linear=True), of_vectors),
    }
    for name, (layer, omega) in passed.items():
        layer = layer.convert(library.array).keep_heads([2, 1])
        assert layer.linear
        complete = library.numpy(layer.attention(library.array(inputs)))
        np.testing.assert_allclose(complete, omega[:, ::-1], rtol=1e-12, atol=1e-13, err_msg=name)
        column = library.numpy(layer.attention(library.array(inputs), query=1))
        np.testing.assert_allclose(column[..., 0], omega[:, ::-1, :, 1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("readout", ["last", "mean"])
def test_batches_change_nothing(library, generator, readout):
    inputs = generator.standard_normal((7, 4, 5))
    first, second = random_layers((2, 3), 5, generator)
    omega = attention_by_loops(inputs, second)
    layers = [pk.AttentionProduct(library.array(first)), pk.Attention(library.array(omega))]
    inputs = library.array(inputs)
    complete = library.numpy(pk.attentioned_inputs(inputs, layers, readout))
    for size in (1, 3, 7, 100):
        actual = library.numpy(pk.attentioned_inputs(inputs, layers, readout, batch_size=size))
        np.testing.assert_allclose(actual, complete, rtol=0, atol=1e-15)


def test_large_scores_do_not_overflow(library, generator):
    inputs = library.array(generator.standard_normal((2, 3, 4)))
    layer = pk.AttentionProduct(library.array(1e6 * generator.standard_normal((1, 4, 4))))
    omega = library.numpy(layer.attention(inputs))
    np.testing.assert_allclose(omega.sum(axis=-2), 1.0, rtol=1e-15)


def test_zero_scores_average_the_tokens(library, generator):
    inputs = generator.standard_normal((2, 3, 4))
    layers = [pk.AttentionProduct(library.array(np.zeros((1, 4, 4))))] * 3
    xi = library.numpy(pk.attentioned_inputs(library.array(inputs), layers))
    np.testing.assert_allclose(xi[:, 0], inputs.mean(axis=1), atol=1e-15)


def test_kept_heads_give_the_kept_paths(library, generator):
    inputs = generator.standard_normal((4, 3, 5))
    query_key, two, three = random_layers((3, 3, 2), 5, generator)
    omega = attention_by_loops(inputs, three)
    queries, keys = query_key[:, :2, :], two[:, :2, :]
    layers = [
        pk.QueryKey(library.array(queries), library.array(keys), 0.5),
        pk.AttentionProduct(library.array(two)),
        pk.Attention(library.array(omega)),
    ]
    inputs = library.array(inputs)
    network = pk.Network((3, 3, 2), 10)
    subset = ((1, 3), (2, 3), (2,))
    complete = library.numpy(pk.attentioned_inputs(inputs, layers))
    fewer = [layer.keep_heads(heads) for layer, heads in zip(layers, subset)]
    actual = library.numpy(pk.attentioned_inputs(inputs, fewer))
    np.testing.assert_allclose(actual, complete[:, network.paths_through(subset)], atol=1e-15)


@pytest.mark.parametrize("number", [0, 4, -1])
def test_heads_that_do_not_exist_cannot_be_kept(library, number):
    array = library.array(np.full((1, 3, 2, 2), 0.5))
    for layer in (
        pk.QueryKey(array[0, ...], array[0, ...]),
        pk.AttentionProduct(array[0, ...]),
        pk.Attention(array),
    ):
        with pytest.raises(
            ValueError, match=rf"numbered from 1 to 3 in this layer, but are .*{number}\]"
        ):
            layer.keep_heads([1, number])
        with pytest.raises(ValueError, match=r"numbered from 1 to 3 in this layer, but are \[\]"):
            layer.keep_heads([])


def test_layers_convert_to_another_library(library, generator):
    queries, keys = generator.standard_normal((2, 2, 3, 5))
    products = generator.standard_normal((2, 5, 5))
    omega = np.full((4, 2, 3, 3), 1 / 3)
    inputs = generator.standard_normal((4, 3, 5))
    layers = [pk.QueryKey(queries, keys, 0.7), pk.AttentionProduct(products), pk.Attention(omega)]
    expected = pk.attentioned_inputs(inputs, layers)
    converted = [layer.convert(library.array) for layer in layers]
    actual = library.numpy(pk.attentioned_inputs(library.array(inputs), converted))
    np.testing.assert_allclose(actual, expected, atol=1e-14)


def test_the_caller_keeps_its_arrays(generator):
    inputs = generator.standard_normal((4, 3, 5))
    products = generator.standard_normal((2, 5, 5))
    before = inputs.copy(), products.copy()
    pk.attentioned_inputs(inputs, [pk.AttentionProduct(products)])
    np.testing.assert_array_equal(inputs, before[0])
    np.testing.assert_array_equal(products, before[1])


def test_bad_inputs_are_named(library):
    good = library.array(np.ones((2, 3, 4)))
    layer = pk.AttentionProduct(library.array(np.ones((1, 4, 4))))
    bad = np.ones((2, 3, 4))
    bad[1, 2, 3] = np.nan
    cases = [
        ((library.array(np.ones((2, 3))), [layer]), r"inputs must have shape .* but has \(2, 3\)"),
        ((library.array(bad), [layer]), r"inputs of shape \(2, 3, 4\) holds NaN or infinity"),
        ((library.array(np.ones((0, 3, 4))), [layer]), "inputs .* is empty: P must not be 0"),
        (
            (library.array(np.ones((2, 3, 5))), [layer]),
            "width N_0 = 5, but products expect N_0 = 4",
        ),
        ((good, [layer], "middle"), 'readout must be "first", "last", "mean".* not \'middle\''),
        ((good, [layer], 1.0), "readout must be .* not 1.0"),
        ((good, [layer], True), "readout must be .* not True"),
        ((good, [layer], 3), "readout names token 3, but sequences have 3 tokens"),
        ((good, [layer], -4), "readout names token -4, but sequences have 3 tokens"),
        ((good, [layer], "last", 0), "batch_size must be a whole number from 1, not 0"),
        (
            (good, [pk.Attention(library.array(np.full((3, 1, 3, 3), 1 / 3)))]),
            r"layers\[0\].omega holds 3 examples, but inputs holds 2",
        ),
        (
            (good, [pk.Attention(library.array(np.full((2, 1, 4, 4), 1 / 4)))]),
            r"omega must have shape \(2, 1, 3, 3\)",
        ),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            pk.attentioned_inputs(*arguments)
    for layers, message in [
        ([], "layers must be a list of at least one attention layer"),
        (layer, "layers must be a list of at least one attention layer"),
        (
            [layer, good],
            r"layers\[1\] must be a QueryKey, AttentionProduct, KeyVectors",
        ),
    ]:
        with pytest.raises(TypeError, match=message):
            pk.attentioned_inputs(good, layers)
    with pytest.raises(TypeError, match=r"inputs must be an array .* not list; convert it"):
        pk.attentioned_inputs([[[1.0]]], [layer])


def test_bad_layers_are_named(library):
    array = library.array
    with pytest.raises(ValueError, match=r"keys must have shape \(1, 2, 3\), but has \(1, 2, 4\)"):
        pk.QueryKey(array(np.ones((1, 2, 3))), array(np.ones((1, 2, 4))))
    with pytest.raises(ValueError, match=r"queries must have shape .* but has"):
        pk.QueryKey(array(np.ones((2, 3))), array(np.ones((2, 3))))
    with pytest.raises(ValueError, match=r"products must have shape \(H, 4, 4\), but has \(3, 4\)"):
        pk.AttentionProduct(array(np.ones((3, 4))))
    with pytest.raises(ValueError, match=r"products must have shape .* but has \(1, 3, 4\)"):
        pk.AttentionProduct(array(np.ones((1, 3, 4))))
    with pytest.raises(ValueError, match=r"omega must have shape .* but has \(2, 1, 3, 4\)"):
        pk.Attention(array(np.ones((2, 1, 3, 4))))
    with pytest.raises(ValueError, match=r"omega must sum to 1 over the key tokens .* off by 1;"):
        pk.Attention(array(np.ones((3, 1, 2, 2))))
    for scale in (0.0, np.nan, -1.0):
        with pytest.raises(ValueError, match="scale must be positive"):
            pk.QueryKey(array(np.ones((1, 2, 3))), array(np.ones((1, 2, 3))), scale)
    with pytest.raises(ValueError, match=r"queries .* is empty: G must not be 0"):
        pk.QueryKey(array(np.ones((1, 0, 3))), array(np.ones((1, 0, 3))))
    with pytest.raises(ValueError, match=r"omega .* holds NaN or infinity"):
        pk.Attention(array(np.full((1, 1, 2, 2), np.inf)))
    with pytest.raises(TypeError, match=r"products must be an array .* not list"):
        pk.AttentionProduct([[[1.0]]])
    with pytest.raises(TypeError, match=r"omega must be an array .* not list"):
        pk.Attention([[[[1.0]]]])
    with pytest.raises(TypeError, match="queries must be an array"):
        pk.QueryKey([[[1.0]]], array(np.ones((1, 1, 1))))


def test_attention_that_overflows_is_refused(library):
    inputs = library.array(np.full((2, 3, 4), 1e160))
    heads = library.array(np.full((1, 2, 4), 1.0))
    with pytest.raises(ValueError, match=r"keys of shape .* overflows; rescale"):
        pk.attentioned_inputs(inputs, [pk.QueryKey(heads, heads)])
