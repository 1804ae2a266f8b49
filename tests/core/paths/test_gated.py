"""Layers with gates: attention and attentioned inputs against loops, and a gated network."""

import math

import numpy as np
import pytest

import pathkernel_core as pk

WIDTH, TOKENS, EXAMPLES = 5, 4, 6


def sigmoid_gates(inputs):
    """Two gates (batch, M, 2) of the first two features."""
    return 1 / (1 + np.exp(-inputs[..., :2]))


def inner_layers(generator):
    queries, keys = generator.standard_normal((2, 2, 3, WIDTH))
    omega = generator.dirichlet(np.ones(TOKENS), size=(EXAMPLES, 2, TOKENS)).swapaxes(-1, -2)
    return {
        "queries and keys": pk.QueryKey(queries, keys, 0.5),
        "product": pk.AttentionProduct(generator.standard_normal((2, WIDTH, WIDTH))),
        "matrices": pk.Attention(omega),
    }


def by_loops(omega, gates):
    """g^m(x_s) Ω^h_st of every pair of a head and a gate, the gate faster."""
    heads, count = omega.shape[1], gates.shape[2]
    pairs = [(head, gate) for head in range(heads) for gate in range(count)]
    return np.stack([omega[:, h] * gates[:, :, m, None] for h, m in pairs], axis=1)


@pytest.mark.parametrize("name", ["queries and keys", "product", "matrices"])
def test_every_pair_of_a_head_and_a_gate_is_a_head(library, generator, name):
    inputs = generator.standard_normal((EXAMPLES, TOKENS, WIDTH))
    layer, hyperplanes = inner_layers(generator)[name], generator.standard_normal((3, WIDTH))
    expected = by_loops(layer.attention(inputs), (inputs @ hyperplanes.T > 0).astype(float))
    gated = pk.Gated(layer, hyperplanes).convert(library.array)
    assert gated.n_heads == 6
    actual = library.numpy(gated.attention(library.array(inputs)))
    np.testing.assert_allclose(actual, expected, atol=1e-15)
    column = library.numpy(gated.attention(library.array(inputs), query=2))
    np.testing.assert_allclose(column, expected[..., 2:3], atol=1e-15)
    for heads in ([4, 1], [6]):
        kept = gated.keep_heads(heads)
        assert kept.n_heads == len(heads)
        omega = library.numpy(kept.attention(library.array(inputs)))
        np.testing.assert_allclose(omega, expected[:, np.subtract(heads, 1)], atol=1e-15)
    fewest = gated.keep_heads([5, 2]).keep_heads([2])
    omega = library.numpy(fewest.attention(library.array(inputs)))
    np.testing.assert_allclose(omega, expected[:, [1]], atol=1e-15)


@pytest.mark.parametrize("readout", ["last", "mean"])
def test_paths_go_through_a_head_and_a_gate_of_every_layer(generator, readout):
    inputs = generator.standard_normal((EXAMPLES, TOKENS, WIDTH))
    layers = list(inner_layers(generator).values())
    gated = [layers[0], pk.Gated(layers[2], sigmoid_gates, 2)]
    first, second = layers[0].attention(inputs), gated[1].attention(inputs)
    np.testing.assert_array_equal(
        second, by_loops(layers[2].attention(inputs), sigmoid_gates(inputs))
    )
    last = second.mean(axis=-1) if readout == "mean" else second[..., -1]
    expected = np.einsum("pgst,pht,psi->pghi", first, last, inputs).reshape(EXAMPLES, 8, WIDTH)
    for size in (2, None):  # in batches, the layer is one of a slice
        xi = pk.attentioned_inputs(inputs, gated, readout, batch_size=size)
        np.testing.assert_allclose(xi, expected, atol=1e-14)


def test_gated_network_without_attention(library, generator):
    """The limit of such a network has the kernel Σ_m g^m(x) g^m(x') x·x'/N_0 / G."""
    inputs, hyperplanes = generator.standard_normal((9, WIDTH)), generator.standard_normal((3, 5))
    labels = generator.standard_normal(9)
    layer = pk.Gated(None, hyperplanes).convert(library.array)
    xi = pk.attentioned_inputs(library.array(inputs[:, None, :]), [layer])
    gates = (inputs @ hyperplanes.T > 0).astype(float)
    np.testing.assert_array_equal(library.numpy(xi), gates[:, :, None] * inputs[:, None, :])
    network = pk.Network((3,), (10, math.inf))
    solution = pk.gp_limit(pk.Problem(xi, library.array(labels)), network, 0.1)
    kernel = (gates @ gates.T) * (inputs @ inputs.T) / WIDTH / 3
    mean = kernel @ np.linalg.solve(kernel + 0.1 * np.eye(9), labels)
    np.testing.assert_allclose(library.numpy(solution.predict_mean(xi)), mean, atol=1e-10)


def test_tokens_without_attention_attend_to_themselves(generator):
    inputs = generator.standard_normal((EXAMPLES, TOKENS, WIDTH))
    gates = sigmoid_gates(inputs)
    gated = pk.Gated(None, sigmoid_gates, n_gates=2)
    for readout, token in {"first": 0, "mean": slice(None)}.items():
        expected = (gates[:, token, :, None] * inputs[:, token, None, :]).reshape(
            EXAMPLES, -1, 2, WIDTH
        )
        xi = pk.attentioned_inputs(inputs, [gated], readout)
        np.testing.assert_allclose(xi, expected.mean(axis=1), atol=1e-15)


def test_gates_that_do_not_fit_are_named(library):
    array, ones = library.array, np.ones((2, 3, 4))
    layer = pk.AttentionProduct(array(np.ones((1, 4, 4))))
    for arguments, error, message in [
        ((layer, sigmoid_gates), ValueError, "n_gates must give the number of gates"),
        ((layer, sigmoid_gates, 0), ValueError, "n_gates must be a whole number from 1, not 0"),
        ((layer, array(np.ones((2, 4))), 3), ValueError, r"\(2, 4\) are 2 hyperplanes; leave"),
        ((layer, array(np.ones(4))), ValueError, r"gates must have shape \(G, N_0\), but has"),
        ((layer, [[1.0]]), TypeError, "gates must be an array"),
        ((3.0, array(np.ones((2, 4)))), TypeError, "layer must be a layer or None, not float"),
    ]:
        with pytest.raises(error, match=message):
            pk.Gated(*arguments)
    for gates, message in [
        (array(np.ones((2, 5))), r"hyperplanes of inputs of width 5, .* \(2, 3, 4\) have width 4"),
        (lambda x: x, r"the result of gates must have shape \(2, 3, 2\), but has \(2, 3, 4\)"),
        (lambda x: x[..., :2] * math.inf, "the result of gates .* holds NaN or infinity"),
    ]:
        gated = pk.Gated(layer, gates, 2)
        with pytest.raises(ValueError, match=message):
            pk.attentioned_inputs(array(ones), [gated])
    with pytest.raises(ValueError, match=r"numbered from 1 to 2 in this layer, but are \[3\]"):
        gated.keep_heads([3])
    omega = pk.Gated(pk.Attention(array(np.full((3, 1, 3, 3), 1 / 3))), array(np.ones((2, 4))))
    with pytest.raises(ValueError, match=r"layers\[0\].omega holds 3 examples, but inputs holds 2"):
        pk.attentioned_inputs(array(ones), [omega])
