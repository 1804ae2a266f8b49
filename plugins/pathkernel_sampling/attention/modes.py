"""Modes of the posterior of attention: clusters of what heads attend to, with masses.

Draws are compared by the attention of their heads to the tokens of some test examples. Heads may be
exchanged, so they are ordered first, along the direction in which their attention differs most. A
mixture of Gaussians is fitted to the leading principal components, as many as the Bayesian
information criterion chooses, and those that overlap are merged (Hennig 2010): a mode need not be
Gaussian.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from arviz_stats.base import array_stats
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from pathkernel_sampling.tempering.mixture import estimate_components, log_gaussian

_DRAWS = 2000  # that are clustered
_COMPONENTS = 8  # of the mixture, before they are merged
_DRAWS_OF_COMPONENT = 10  # that a component needs on average
_PRINCIPAL = 6  # components
_OVERLAP = 0.1  # share of a component that is classified as another, from which they are merged
_FAR = 2.0  # times the distance within which 99 of 100 draws have a neighbour
_FOCUSED = 0.5  # mean attention to one position from which a head attends to it
_SPREAD = 0.5  # of all tokens, that a head attends to which attends to none in particular
_SEED = 0

HeadAttention = Sequence[np.ndarray]
"""Attention of each layer, of shape (count, H, examples, M)."""


@dataclass(frozen=True, eq=False)
class AttentionModes:
    """Modes of draws.

    Attributes
    ----------
    labels : array of int, shape (chain, draw)
        Mode of each draw, from 0, by decreasing mass.
    names : list of str
        What the heads of each mode attend to: a position, content, or nothing in particular.
    masses, errors : arrays, shape (mode,)
        Share of the draws, and its Monte-Carlo error.
    by_chain : array, shape (chain, mode)
        Share of the draws of each chain.
    attention : array, shape (mode, H, examples, M)
        Mean attention of the heads of all layers.
    """

    labels: np.ndarray
    names: list[str]
    masses: np.ndarray
    errors: np.ndarray
    by_chain: np.ndarray
    attention: np.ndarray
    space: AttentionSpace


@dataclass(frozen=True, eq=False)
class AttentionSpace:
    """Principal components of attention, and the clusters of draws in them."""

    directions: list[np.ndarray]
    centre: np.ndarray
    axes: np.ndarray
    components: tuple[np.ndarray, ...]
    mode_of_component: np.ndarray
    draws: np.ndarray
    near: float

    def classify(self, heads: HeadAttention) -> tuple[np.ndarray, np.ndarray]:
        """Mode of attention from elsewhere, as of maxima, and whether a draw attends alike.

        Where none does the chains may have missed a mode.
        """
        ordered = _order_heads(heads, self.directions)
        flat = ordered.reshape(len(ordered), -1)
        logs = _log_components((flat - self.centre) @ self.axes, self.components)
        distances = cdist(flat, self.draws).min(1)
        return self.mode_of_component[logs.argmax(1)], distances <= self.near


def chosen_draws(draws: int, chains: int) -> slice:
    """Draws of each chain that are clustered: at most 2,000 of all, evenly."""
    return slice(None, None, -(-draws * chains // _DRAWS))


def find_modes(heads: HeadAttention, chains: int) -> AttentionModes:
    """Find modes of draws by what their heads attend to.

    Parameters
    ----------
    heads : sequence of arrays, shapes (chain · draw, H, examples, M)
        Attention of each layer in every draw, chain after chain.
    chains : int
        Number of chains.
    """
    directions = [_leading_direction(of_layer) for of_layer in heads]
    ordered = _order_heads(heads, directions)
    flat = ordered.reshape(len(ordered), -1)
    centre = flat.mean(0)
    # principal components from the smaller of the two Gram matrices
    left, values, _ = np.linalg.svd((flat - centre) @ (flat - centre).T, hermitian=True)
    count = min(_PRINCIPAL, int(np.sum(values > 1e-12 * max(values[0], 1e-300))))
    axes = (flat - centre).T @ left[:, :count] / np.sqrt(values[:count])
    scores = (flat - centre) @ axes
    if not count:  # draws that are all alike
        axes, scores = np.zeros((len(centre), 1)), np.zeros((len(flat), 1))
    components, logs = _fit(scores)
    groups = merge_components(np.exp(logs - logsumexp(logs, axis=1, keepdims=True)))
    labels = groups[logs.argmax(1)]
    # by decreasing mass; a group without draws counts as the last
    used = np.unique(labels)
    sizes = np.bincount(labels)[used]
    by_mass = used[np.argsort(-sizes, kind="stable")]
    place = np.full(logs.shape[1], len(by_mass) - 1)
    place[by_mass] = np.arange(len(by_mass))
    labels = place[labels].reshape(chains, -1)

    neighbours = cdist(flat, flat) if len(flat) > 1 else np.ones((1, 1))
    np.fill_diagonal(neighbours, np.inf)
    near = _FAR * float(np.quantile(neighbours.min(1), 0.99)) if len(flat) > 1 else 0.0
    is_in = labels[..., None] == np.arange(len(by_mass))  # (chain, draw, mode)
    by_chain = is_in.mean(1)
    masses = is_in.mean((0, 1))
    parts = [ordered[of_mode] for of_mode in is_in.reshape(-1, len(by_mass)).T]
    return AttentionModes(
        labels=labels,
        names=_number_names([_name(part) for part in parts]),
        masses=masses,
        errors=np.array([_error(is_in[..., mode]) for mode in range(len(masses))]),
        by_chain=by_chain,
        attention=np.stack([part.mean(0) for part in parts]),
        space=AttentionSpace(directions, centre, axes, components, place[groups], flat, near),
    )


def merge_components(responsibilities: np.ndarray) -> np.ndarray:
    """Merge components that overlap.

    Two are merged while more than a tenth of the one is classified as the other, those that overlap
    most first.

    Parameters
    ----------
    responsibilities : array, shape (n, k)

    Returns
    -------
    groups : array of int, shape (k,)
        Number, from 0 on, of the group of each component.
    """
    groups = np.arange(responsibilities.shape[1])
    while True:
        names = np.unique(groups)
        shares = np.stack([responsibilities[:, groups == name].sum(1) for name in names], axis=1)
        classified = np.eye(len(names))[shares.argmax(1)]
        confused = shares.T @ classified / np.maximum(shares.sum(0), 1e-300)[:, None]
        np.fill_diagonal(confused, 0.0)
        if confused.max(initial=0.0) <= _OVERLAP:
            return np.searchsorted(names, groups)
        one, other = np.unravel_index(confused.argmax(), confused.shape)
        groups[groups == names[one]] = names[other]


def _leading_direction(heads: np.ndarray) -> np.ndarray:
    """Direction (examples · M,) in which the attention of heads (draw, H, examples, M) differs."""
    flat = heads.reshape(-1, heads.shape[2] * heads.shape[3])
    flat = flat - flat.mean(0)
    return np.linalg.eigh(flat.T @ flat)[1][:, -1]


def _order_heads(heads: HeadAttention, directions: Sequence[np.ndarray]) -> np.ndarray:
    """Attention (draw, H of all layers, examples, M), the heads of a layer in order."""
    layers = []
    for of_layer, direction in zip(heads, directions):
        along = of_layer.reshape(*of_layer.shape[:2], -1) @ direction
        order = np.argsort(-along, axis=1)[:, :, None, None]
        layers.append(np.take_along_axis(of_layer, order, axis=1))
    return np.concatenate(layers, axis=1)


def _fit(scores: np.ndarray) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Mixture of as many components as the Bayesian information criterion chooses, and its logs."""
    draws, dimension = scores.shape
    best, fits = np.inf, []
    most = min(_COMPONENTS, draws // _DRAWS_OF_COMPONENT) if np.ptp(scores) > 0 else 1
    for number in range(1, max(1, most) + 1):
        weights, means, covariances, _ = estimate_components(scores, number, _SEED)
        components = np.log(weights), means, covariances
        logs = _log_components(scores, components)
        parameters = number * (1 + dimension + dimension * (dimension + 1) / 2) - 1
        criterion = parameters * np.log(draws) - 2 * logsumexp(logs, axis=1).sum()
        if criterion < best:
            best, fits = criterion, [components, logs]
    components, logs = fits
    return components, logs


def _log_components(scores: np.ndarray, components: tuple[np.ndarray, ...]) -> np.ndarray:
    log_weights, means, covariances = components
    parts = zip(log_weights, means, covariances)
    return np.stack([log + log_gaussian(scores, *rest) for log, *rest in parts], axis=1)


def _error(is_in: np.ndarray) -> float:
    """Monte-Carlo error of the mass of a mode, from draws (chain, draw) that are in it or not."""
    size, mass = float(array_stats.ess(is_in.astype(float), method="mean")), is_in.mean()
    return float(np.sqrt(mass * (1 - mass) / size)) if size > 0 else float("nan")


def _name(attention: np.ndarray) -> str:
    """What heads attend to in draws of a mode, (draw, H, examples, M); positions from 1."""
    tokens = attention.shape[3]
    entropy = -np.sum(attention * np.log(np.maximum(attention, 1e-300)), axis=3)
    attended = np.exp(entropy.mean((0, 2)))
    by_token = attention.mean((0, 2))  # (H, M)
    names = []
    for of_head, number in zip(by_token, attended):
        if of_head.max() >= _FOCUSED:
            names.append(f"position {of_head.argmax() + 1}")
        else:
            names.append("spread" if number > _SPREAD * tokens else "content")
    return " + ".join(names)


def _number_names(names: list[str]) -> list[str]:
    """Names that differ: a second mode of the same name has its number."""
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return numbered
