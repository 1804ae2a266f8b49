"""The check of kernels of tokens accepts right ones, and each part of it rejects a wrong one."""

import math

import numpy as np
import pytest

from pathkernel_core.contracts.testing import check_kernel
from pathkernel_core.energy.token_kernels import TOKEN_KERNELS
from pathkernel_core.energy.token_kernels.relu import relu_kernel


def cosine(k_ab, k_aa, k_bb):
    return np.exp(-(k_aa + k_bb) / 2) * np.cosh(k_ab)


@pytest.mark.parametrize("name", TOKEN_KERNELS)
def test_named_kernels_are_those_of_their_activation_functions(name):
    check_kernel(name)


def test_right_kernels_pass():
    check_kernel(cosine, np.cos)
    check_kernel(relu_kernel, lambda u: np.maximum(u, 0))
    check_kernel(lambda k_ab, k_aa, k_bb: k_ab**3 + k_ab + 0.1 * k_aa * k_bb)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda k_ab, k_aa, k_bb: k_ab / np.sqrt(k_aa * k_bb), "be finite, but is nan at k_ab = 0"),
        (lambda k_ab, k_aa, k_bb: k_ab + k_aa, "be symmetric: .* differ by up to"),
        (lambda k_ab, k_aa, k_bb: k_ab - 0.1 * k_aa * k_bb, "semidefinite, .* the eigenvalue -"),
        (lambda k_ab, k_aa, k_bb: -k_ab, "semidefinite"),
        (lambda k_ab, k_aa, k_bb: k_aa, r"gives \(12, 1\)"),
        (lambda k_ab, k_aa, k_bb: k_ab / abs(k_ab).max(), "element by element, but"),
    ],
)
def test_no_kernels_are_refused(kernel, message):
    with pytest.raises(AssertionError, match=message):
        check_kernel(kernel)


@pytest.mark.parametrize(
    ("kernel", "activation"),
    [
        (relu_kernel, np.tanh),
        (lambda *k: 1.02 * relu_kernel(*k), lambda u: np.maximum(u, 0)),  # a factor
        (lambda *k: relu_kernel(*k) - 1 / (2 * math.pi), lambda u: np.maximum(u, 0)),
        (lambda k_ab, k_aa, k_bb: np.exp(k_ab - (k_aa + k_bb) / 2), np.cos),  # of cos and sin
    ],
)
def test_kernels_of_another_layer_are_refused(kernel, activation):
    with pytest.raises(AssertionError, match=r"random layer of 1048576 units|semidefinite"):
        check_kernel(kernel, activation)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match='must be "linear", "relu", "erf" or a function'):
        check_kernel("tanh")


@pytest.mark.parametrize("argument", range(3))
def test_a_kernel_that_changes_its_arguments_is_refused(argument):
    def kernel(*arguments):
        arguments[argument][...] *= 1
        arguments[argument][..., -1:] += 1.0
        return arguments[0] + 0.0

    name = ("k_ab", "k_aa", "k_bb")[argument]
    with pytest.raises(AssertionError, match=f"must not change its arguments, but changes {name};"):
        check_kernel(kernel)
