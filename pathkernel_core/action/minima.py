"""Test for several minima of the action, and starts of a search for them.

Only one term of the action, the misfit Yᵀ(K + T1)⁻¹Y, is not convex along the geodesics of positive
definite matrices, and only where the kernel is smaller than the temperature along the labels. There
the gradient fades, so that a network may stay *silent* although one that uses its paths would have
a lower action. Scaling the limit's kernel by eᵗ shows it: with N_ℓ (e^{t_ℓ} − 1) = μ, of least
entropy cost, Σ_ℓ t_ℓ = t and r = λ eᵗ/T,

    misfit''(t) = Σ_k (v_k·Y)²/T · r(r − 1)/(1 + r)³,      ln det''(t) = C Σ_k r/(1 + r)²,
    entropy''(t) ≥ 1 / Σ_ℓ 1/(N_ℓ + μ)   (of one path; more paths cost more)
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pathkernel_core.action.coordinates import ChainCoordinates
from pathkernel_core.action.quasi_newton import Asking
from pathkernel_core.energy.label_spectrum import LabelSpectrum
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_core.system.errors import ScaleWarning

SUSPICIOUS = 1.0  # Concavity.ratio from which a second start is tried
STRONG = 10.0  # Concavity.ratio from which every head is tried
MOST_STARTS = 24  # starts of an automatic search, the limit included
AGREEING = 2  # starts in a row that lead back to known minima, at which it ends
SMALLEST_SHARE = 0.01  # of the squared labels, which the limit's kernel should explain
LARGEST_VARIANCE = 1e4  # of a prior output over the mean squared label
_LARGEST_SCALE = 60.0  # t
_STEP = 2.0  # in t
_SUPPRESSION = 3.0  # of the logarithms of factors of heads switched off


@dataclass(frozen=True)
class Concavity:
    """Largest concavity of the misfit over the other terms along scalings of the limit's kernel.

    Attributes
    ----------
    ratio : float
        Largest −(misfit'' + ln det'') / entropy'' over t ≥ 0. Below 1, random starts found no lower
        minimum (``python -m benchmarks.core.minima``).
    scale : float
        The t at which it is largest, in natural logarithms of U.
    """

    ratio: float
    scale: float


def concavity(spectrum: LabelSpectrum, network: Network, temperature: float) -> Concavity:
    """Concavity of the action along scalings of the limit's kernel.

    Parameters
    ----------
    spectrum : LabelSpectrum
        Spectrum of the limit's kernel, variances included.
    network : Network
    temperature : float
    """
    widths = np.array(network.finite_widths) / network.width  # the others do not adapt
    positive = spectrum.labels.nodes[spectrum.labels.nodes > 0]
    if not (positive.size and widths.size):
        return Concavity(0.0, 0.0)
    # misfit'' < 0 needs r < 1: no concavity beyond the t at which the weakest mode passes T
    highest = min(_LARGEST_SCALE, max(0.0, math.log(temperature / positive.min())) + 5.0)
    forces = _forces(widths, highest)
    scales = np.log1p(forces[:, None] / widths).sum(axis=1)
    stiffness = 1 / np.sum(1 / (widths + forces[:, None]), axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        of_labels = np.exp(scales)[:, None] * (spectrum.labels.nodes / temperature)
        of_modes = np.exp(scales)[:, None] * (spectrum.modes.nodes / temperature)
        powers = spectrum.labels.weights / temperature
        misfit = (powers * of_labels * (of_labels - 1) / (1 + of_labels) ** 3).sum(axis=1)
        log_det = (spectrum.modes.weights * of_modes / (1 + of_modes) ** 2).sum(axis=1)
        ratios = -(misfit + network.outputs * log_det) / network.width / stiffness
        ratios = np.nan_to_num(ratios)
    index = int(np.argmax(ratios))
    return Concavity(float(ratios[index]), float(scales[index]))


def suspicion(problem: Problem, network: Network, temperature: float) -> Concavity:
    """Concavity of the action by which :func:`minimise_action` decides whether to search.

    None for independent branches, whose action is convex in u but for ln det: see
    :mod:`pathkernel_core.action.branches`.
    """
    if not network.shared:
        return Concavity(0.0, 0.0)
    temperature = _search_temperature(problem, temperature)
    return concavity(problem.label_spectrum(network), network, temperature)


def may_have_several(problem: Problem, network: Network, temperature: float) -> bool:
    """Whether :func:`minimise_action` searches for more than one minimum."""
    if not network.shared:
        return False
    spectrum, temperature = (
        problem.label_spectrum(network),
        _search_temperature(problem, temperature),
    )
    if largest_ratio(spectrum, network, temperature) < SUSPICIOUS:
        return False
    return concavity(spectrum, network, temperature).ratio >= SUSPICIOUS


def _search_temperature(problem: Problem, temperature: float) -> float:
    """Temperature of the squared loss that resembles the likelihood: T itself, or 1/W at f = 0."""
    return problem.likelihood.search_temperature(temperature, problem.outputs)


def largest_ratio(spectrum: LabelSpectrum, network: Network, temperature: float) -> float:
    """Bound on :attr:`Concavity.ratio`, in a thirtieth of its time: each mode at its own worst t.

    A mode is worst at r = 2 − √3, or at t = 0 if it is beyond; ln det'' is positive, and entropy''
    smallest at t = 0.
    """
    with np.errstate(over="ignore"):
        r = np.maximum(spectrum.labels.nodes / temperature, 2 - math.sqrt(3))
        concave = np.maximum(r * (1 - r), 0.0) / (1 + r) ** 3
    compliance = sum(1 / width for width in network.finite_widths)
    return float(spectrum.labels.weights @ concave) / temperature * compliance


def scaled_limit(coordinates: ChainCoordinates, scale: float) -> Asking[np.ndarray]:
    """Coordinates of the limit scaled by steps beyond ``scale`` while the energy falls.

    A generator, as :func:`pathkernel_core.action.quasi_newton.minimiser`: it asks for the action,
    whose Iterate has the energy in its detail, which is None outside the domain.

    Parameters
    ----------
    coordinates : ChainCoordinates
    scale : float
        Smallest t, :attr:`Concavity.scale`.
    """
    network = coordinates.network
    sizes = np.subtract(network.sizes, network.shared_sizes) * (
        np.array(network.widths) / network.width
    )
    forces = _forces(sizes[np.isfinite(sizes)], _LARGEST_SCALE)
    scales = np.log1p(forces[:, None] / sizes).sum(axis=1)
    # by the energy alone: the entropy is the barrier that the start has to pass. Where the energy
    # rises again, ln det outweighs what is left of the misfit
    lowest, best = math.inf, coordinates.gp_limit
    while scale + _STEP <= _LARGEST_SCALE:
        scale += _STEP
        force = np.interp(scale, scales, forces)
        logs = np.zeros(len(network.sizes))
        logs[-len(sizes) :] = np.log1p(force / sizes)
        start = coordinates.scale_limit(logs)
        detail = (yield start).detail
        if detail is None or not detail.energy < lowest:
            break
        lowest, best = detail.energy, start
    return best


def further_starts(
    coordinates: ChainCoordinates, scaled: np.ndarray
) -> Asking[Iterator[np.ndarray]]:
    """Coordinates from which to search for other minima, without end.

    From the scaled limit each head of a layer with the other heads of the layer suppressed, those
    of the lowest action first; then random ones. A generator, as :func:`scaled_limit`, which
    returns the iterator of the starts.
    """
    network = coordinates.network
    of_heads = [
        coordinates.suppress_heads(scaled, layer, head, _SUPPRESSION)
        for layer, heads in enumerate(network.heads)
        for head in range(heads)
        if heads > 1 and math.isfinite(network.widths[layer])
    ]
    values = []
    for start in of_heads:  # an evaluation each, where a descent takes tens
        values.append((yield start).value)
    of_heads = [of_heads[index] for index in np.argsort(values, kind="stable")]
    return itertools.chain(of_heads, random_starts(scaled))


def random_starts(scaled: np.ndarray) -> Iterator[np.ndarray]:
    """Yield random coordinates around the scaled limit and the limit, without end."""
    generator = np.random.default_rng(0)
    while True:
        noise = generator.choice([0.1, 0.5, 1.0, 2.0]) * generator.normal(size=scaled.size)
        yield generator.uniform(0.0, 1.5) * scaled + noise


def warn_of_scale(problem: Problem, network: Network, temperature: float) -> None:
    """Warn where the limit's kernel is out of proportion to temperature or labels."""
    spectrum = problem.label_spectrum(network)
    share = spectrum.explained_share(_search_temperature(problem, temperature))
    variance, label_square = spectrum.mean_diagonal, spectrum.mean_label_square
    if not (label_square > 0 and variance < math.inf):
        return  # no labels, or an overflow, at which the factorisation raises
    if not problem.likelihood.is_gaussian:
        if share >= SMALLEST_SHARE and variance <= LARGEST_VARIANCE * label_square:
            return
        size, change = ("small", "raise") if share < SMALLEST_SHARE else ("large", "lower")
        remark = (
            "all classes stay equally probable"
            if size == "small"
            else ("Laplace's approximation has an error there that does not fall with the width")
        )
        message = (
            f"the prior variance of the outputs, {variance:.2g}, is {size} for the "
            f"{problem.likelihood.name} likelihood: {remark}. Rescale the attentioned inputs, or "
            f"{change} the prior variances"
        )
    elif share < SMALLEST_SHARE:
        message = (
            f"the kernel is small against the temperature: in the Gaussian process limit it "
            f"explains {100 * share:.2g} % of the squared labels that its features span, and the "
            "network may stay silent. Multiply the attentioned inputs by a constant, raise the "
            f"prior variances or lower the temperature (T = {temperature:g})"
        )
    elif variance > LARGEST_VARIANCE * label_square:
        message = (
            "the kernel is large against the labels: the prior variance of an output is "
            f"{variance / label_square:.2g} times the mean squared label, and the temperature "
            "hardly matters. Divide the attentioned inputs by a constant, or lower the prior "
            "variances"
        )
    else:
        return
    warnings.warn(message, ScaleWarning, stacklevel=3)


def structured_starts(network: Network) -> int:
    """Number of starts of a full automatic search, the limit included."""
    layers = zip(network.heads, network.widths)
    heads = sum(count for count, width in layers if count > 1 and math.isfinite(width))
    return min(MOST_STARTS, 2 + heads)


def _forces(sizes: np.ndarray, highest: float) -> np.ndarray:
    """Values of μ from 0 to one that scales by at least e^highest."""
    return np.append(0.0, np.geomspace(1e-2 * sizes.min(), sizes.max() * math.exp(highest), 400))
