"""Averages of class probabilities over Gaussian outputs, with their numerical errors."""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    batches,
    compile_function,
    from_host,
    join_batches,
    rows_of,
)
from pathkernel_core.arrays.products import matmul

_RANGE = 9.0  # standard deviations of a Gaussian on each side; beyond lie 2e-19
_NODES = 129, 1025, 8193  # of the quadrature, for standard deviations up to 4, 31 and more
_WIDEST = 4.0, 31.0
_TILTED_NODES, _WIDEST_TILTED = (513, 2049, 16385), (10.0, 40.0, 320.0)
_SETS, _DRAWS = 8, 512  # independent sets of draws, whose spread is the error, and draws of each
_ELEMENTS = 2**22  # of outputs of all draws in memory at once


def average_sigmoid(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Average of 1/(1 + e⁻ᶠ) over Gaussian f, (P,) each, and a bound on its error.

    By the trapezoidal rule in z = (f − m)/√v, whose error falls as exp(−2π²/(h √v)) with the step
    h, since the nearest poles are at f = ±iπ.
    """
    xp = array_namespace(mean=mean, variance=variance)
    widest = math.sqrt(max(0.0, float(xp.max(variance))))
    count = _NODES[int(np.searchsorted(_WIDEST, widest))]
    nodes, step = np.linspace(-_RANGE, _RANGE, count, retstep=True)
    weights = np.exp(-(nodes**2) / 2)
    weights /= weights.sum()
    evaluate = compile_function(_sigmoid_sums, xp)
    arrays = from_host(nodes, mean), from_host(weights[:, None], mean)
    parts = [
        evaluate(rows_of(mean, batch), rows_of(variance, batch), *arrays, float(step))
        for batch in batches(mean.shape[0], max(1, _ELEMENTS // count))
    ]
    value, error = map(join_batches, zip(*parts))
    return value, error


def _sigmoid_sums(
    mean: Array, variance: Array, nodes: Array, weights: Array, step: float
) -> tuple[Array, Array]:
    xp = array_namespace(mean=mean)
    deviation = xp.sqrt(xp.clip(variance, min=0.0))
    outputs = mean[:, None] + deviation[:, None] * nodes
    decay = xp.exp(-xp.abs(outputs))
    sigmoid = xp.where(outputs >= 0, xp.ones_like(decay), decay) / (1 + decay)
    value = matmul(sigmoid, weights)[:, 0]
    tiny = float(xp.finfo(mean.dtype).eps)
    poles = 2 * math.pi**2 / (step * xp.clip(deviation, min=1e-3))
    return value, 2 * xp.exp(-xp.clip(poles, max=80.0)) + tiny


def tilted_nodes(deviation: float) -> int:
    """Nodes of :func:`log_average_sigmoid` for a prior standard deviation of the outputs.

    Raises
    ------
    ValueError
        If it is larger than those for which there are enough.
    """
    for count, widest in zip(_TILTED_NODES, _WIDEST_TILTED):
        if deviation <= widest:
            return count
    raise ValueError(
        f"the prior standard deviation of an output is {deviation:.3g}, more than the "
        f"{_WIDEST_TILTED[-1]:g} that the quadrature of expectation propagation resolves; lower "
        "the prior variances"
    )


def log_average_sigmoid(
    signs: Array, mean: Array, variance: Array, count: int
) -> tuple[Array, Array, Array]:
    """Log average of 1/(1 + exp(−y g)) over g ~ N(m, v), and its first two slopes in m, (P,) each.

    By the trapezoidal rule of so many nodes (:func:`tilted_nodes`), in the range that the Gaussian
    and its shift by the sigmoid reach.
    """
    xp = array_namespace(mean=mean)
    nodes = from_host(np.linspace(0.0, 1.0, count), mean)
    deviation = xp.sqrt(variance)
    # the sigmoid moves the mass by at most v, and no further than g = 0
    shift = xp.clip(-signs * mean / deviation, min=0.0)
    shift = xp.where(shift < deviation, shift, deviation)
    span = (2 * _RANGE + shift)[:, None]
    z = span * nodes - _RANGE
    arguments = (signs * mean)[:, None] + deviation[:, None] * z  # y g
    logs = xp.clip(arguments, max=0.0) - xp.log1p(xp.exp(-xp.abs(arguments))) - z**2 / 2
    largest = xp.max(logs, axis=1, keepdims=True)
    weights = xp.exp(logs - largest)
    total = xp.sum(weights, axis=1, keepdims=True)
    step = span / ((count - 1) * math.sqrt(2 * math.pi))
    weights = weights / total
    # slopes of ln σ(y g) under the tilted density: no difference of moments, which would lose the
    # digits of a small variance
    decay = xp.exp(-xp.abs(arguments))
    slopes = xp.where(arguments >= 0, decay, xp.ones_like(decay)) / (1 + decay)
    first = xp.sum(weights * slopes, axis=1, keepdims=True)
    second = xp.sum(weights * ((slopes - first) ** 2 - slopes * (1 - slopes)), axis=1)
    return (largest + xp.log(total * step))[:, 0], signs * first[:, 0], second


def average_softmax(mean: Array, covariances: Array) -> tuple[Array, Array]:
    """Average of the softmax over Gaussian outputs, (P, C), and its standard error.

    From eight scrambled Sobol sequences of 512 draws with fixed seeds, the same for all examples.
    Classes are taken in the order of their means, so that renumbering them renumbers the results.
    """
    xp, classes = array_namespace(mean=mean, covariances=covariances), mean.shape[1]
    draws = from_host(_normal_draws(classes), mean)
    evaluate = compile_function(_softmax_averages, xp)
    per_example = math.prod(draws.shape)
    parts = [
        evaluate(rows_of(mean, batch), rows_of(covariances, batch), draws)
        for batch in batches(mean.shape[0], max(1, _ELEMENTS // per_example))
    ]
    value, error = map(join_batches, zip(*parts))
    return value, error


@functools.lru_cache(maxsize=8)
def _normal_draws(classes: int) -> np.ndarray:
    """Standard normal draws, (sets · draws, C)."""
    sets = []
    for seed in range(_SETS):
        sequence = scipy.stats.qmc.Sobol(classes, seed=seed)
        uniform = sequence.random(_DRAWS)
        sets.append(scipy.special.ndtri(np.clip(uniform, 1e-16, 1 - 1e-16)))
    return np.concatenate(sets)


def _softmax_averages(mean: Array, covariances: Array, draws: Array) -> tuple[Array, Array]:
    xp, (examples, classes) = array_namespace(mean=mean), mean.shape
    order = xp.argsort(mean, axis=1, descending=True)
    numbers = from_host(np.arange(classes), mean, order.dtype)
    sort = xp.astype(order[:, :, None] == numbers, mean.dtype)
    unsort = xp.matrix_transpose(sort)
    values, vectors = xp.linalg.eigh(matmul(matmul(sort, covariances), unsort))
    # the symmetric root, which does not depend on signs and order of the eigenvectors
    scaled = vectors * xp.sqrt(xp.clip(values, min=0.0))[:, None, :]
    root = matmul(scaled, xp.matrix_transpose(vectors))
    outputs = matmul(sort, mean[:, :, None]) + matmul(root, draws.T)  # (P, C, draws)
    terms = xp.exp(outputs - xp.max(outputs, axis=1, keepdims=True))
    softmax = terms / xp.sum(terms, axis=1, keepdims=True)
    by_set = xp.mean(xp.reshape(softmax, (examples, classes, _SETS, -1)), axis=3)
    by_set = matmul(unsort, by_set)
    # eight independent sets: their spread is that of a mean of the draws of one
    return xp.mean(by_set, axis=2), xp.std(by_set, axis=2, correction=1.0) / math.sqrt(_SETS)
