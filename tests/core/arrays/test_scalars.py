"""Numbers among arguments, of Python and NumPy."""

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.arrays.scalars import positive, real_number, whole_number


@pytest.mark.parametrize(
    "value", [2, 2.0, np.int64(2), np.uint8(2), np.float32(2), np.array(2), np.array(2.0)]
)
def test_numbers_are_taken(value):
    for number in (real_number("x", value), positive("x", value)):
        assert type(number) is float
        assert number == 2.0


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2), np.array(2)])
def test_whole_numbers_are_taken(value):
    number = whole_number("x", value)
    assert type(number) is int
    assert number == 2


@pytest.mark.parametrize("value", [True, np.True_, np.array(True), "2", None, [2.0], np.ones(1)])
def test_others_are_named(value):
    with pytest.raises(TypeError, match="x must be one number, but is"):
        positive("x", value)
    with pytest.raises(ValueError, match="x must be a whole number from 1, not"):
        whole_number("x", value)


def test_bounds():
    for value in (0, -1, np.nan, np.inf, np.float32("inf")):
        with pytest.raises(ValueError, match="x must be positive and finite"):
            positive("x", value)
    with pytest.raises(ValueError, match="x must be a whole number from 3, not 2"):
        whole_number("x", 2, minimum=3)


def test_options_take_them(generator):
    """Wherever a number is an argument, the result is that of Python's."""
    inputs, heads = generator.normal(size=(6, 4, 3)), generator.normal(size=(2, 3, 3))
    plain = pk.attentioned_inputs(inputs, [pk.AttentionProduct(heads, 2.0)], 2, batch_size=5)
    layer = pk.AttentionProduct(heads, np.float32(2))
    for readout in (np.int64(2), np.array(2)):
        xi = pk.attentioned_inputs(inputs, [layer], readout, batch_size=np.int16(5))
        np.testing.assert_array_equal(xi, plain)
    labels = np.sign(generator.normal(size=6))
    problem = pk.Problem(plain, labels)
    networks = (
        pk.Network(np.array(2), np.float32(8), np.float64(1), np.int8(1), np.float32(0.5)),
        pk.Network((np.int64(2),), np.array([8, 8]), 1, np.array(1), np.array(0.5)),
    )
    assert networks[0] == networks[1] == pk.Network(2, 8, 1, 1, 0.5)
    network = pk.Network(2, 8)
    solution = pk.minimise_action(problem, network, 0.5, starts=2, tolerance=2.0**-20)
    other = pk.minimise_action(
        *(problem, network, np.array(0.5)), starts=np.int64(2), tolerance=np.float32(2.0**-20)
    )
    assert other.action == solution.action


@pytest.mark.parametrize("value", [True, np.True_])
def test_truth_values_are_no_numbers(value, generator):
    problem = pk.Problem(generator.normal(size=(5, 2, 3)), np.ones(5))
    for call in (
        lambda: pk.Network((value,), 8),
        lambda: pk.Network(2, value),
        lambda: pk.Network(2, 8, variances=value),
        lambda: pk.Network(2, 8, outputs=value),
        lambda: pk.Network(2, 8, skips=value),
        lambda: pk.minimise_action(problem, pk.Network(2, 8), value),
        lambda: pk.minimise_action(problem, pk.Network(2, 8), 0.1, starts=value),
        lambda: pk.AttentionProduct(np.ones((1, 2, 2)), value),
        lambda: pk.attentioned_inputs(
            np.ones((2, 3, 2)), [pk.AttentionProduct(np.ones((1, 2, 2)))], value
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=r"must be|must hold"):
            call()


def test_numbers_that_vanish_or_overflow_are_named():
    for variances in (1e-200, 1e200):
        with pytest.raises(ValueError, match=r"variances multiply to (0|inf), beyond double"):
            pk.Network((2, 2), 8, variances)
    single = np.ones((1, 2, 2), np.float32)
    with pytest.raises(ValueError, match=r"scale must be at least 1\.17549e-38 in float32"):
        pk.AttentionProduct(single, 1e-40)
    with pytest.raises(ValueError, match="scale must be at least"):
        pk.QueryKey(single, single, 1e-40)
