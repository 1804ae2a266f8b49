"""Maxima of the posterior density of queries and keys, and the volume around them.

A maximum says little without its volume: of many parameters the posterior fills a volume far from
its highest point. Laplace's method gives that volume, ∫ p(Y, x) dx ≈ p(Y, x*) · volume, by the
Hessian of −ln p in the directions along which p falls. It does not fall along the symmetries:

* A rotation R of queries and keys of a head, (RQ, RK), leaves KᵀQ and the prior as they are. The
  maximum is one point of an orbit, whose exact volume replaces that of a Gaussian: with singular
  values s_1 … s_r of the stacked G × 2N_0 matrix (Q/σ_Q, K/σ_K) it is that of the Stiefel manifold
  of r vectors in G dimensions times Π_{i<j, i≤r} (s_i² + s_j²)^{1/2}, with s_j = 0 beyond r.
* Heads of a layer may change places, which gives as many equal maxima.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from pathkernel_core.action.asking import answer_all
from pathkernel_core.action.quasi_newton import Iterate, minimiser
from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.backend import to_host
from pathkernel_core.arrays.scalars import positive, whole_number
from pathkernel_core.learned.posterior import AttentionDensity, AttentionPosterior
from pathkernel_core.paths.layers import AttentionProduct, KeyVectors, Layer, QueryKey
from pathkernel_core.system.errors import (
    MinimisationError,
    NotPositiveDefiniteError,
    OverfittingWarning,
)
from pathkernel_core.system.progress import Progress, Report, silent

_STEP = 1e-3  # of differences of the gradient, in prior deviations
_RANK = 1e-2  # singular values of a head, in prior deviations, below which they count as zero
_SAME = 1e-3  # nats by which the log densities of two starts at one maximum differ
_FLAT = 1e-3  # curvature, of the prior's 1, below which no volume is given


@dataclass(frozen=True, eq=False)
class AttentionMaximum:
    """Maximum of the posterior density of the parameters of attention.

    Attributes
    ----------
    position : array, shape (dimension,)
        Parameters x there, in prior deviations.
    density : AttentionDensity
        Log density there, with the minimum of the action and its predictor.
    curvatures : array
        Eigenvalues of −∂² ln p/∂x² normal to the symmetry, in ascending order; the prior alone has
        1 everywhere.
    log_volume : float
        Log of the volume that the density at the maximum fills, in nats, equal maxima of exchanged
        heads included. NaN if the density does not fall in some direction.
    symmetries : int
        Directions along which rotations of queries and keys change nothing.
    converged : bool
        Whether the gradient is below the tolerance.
    evaluations : int
        Evaluations of the density.
    starts : int
        Number of starts that ended at this maximum.
    """

    position: np.ndarray = field(repr=False)
    density: AttentionDensity
    curvatures: np.ndarray = field(repr=False)
    log_volume: float
    symmetries: int
    converged: bool
    evaluations: int
    starts: int = 1

    @property
    def log_evidence(self) -> float:
        """Laplace's approximation of ln p(Y) of one orbit and its exchanges of heads, in nats."""
        return self.density.log_density + self.log_volume

    @property
    def determined_parameters(self) -> float:
        """Number of parameters that the labels determine, Σ (λ − 1)/λ over curvatures λ."""
        return float(np.sum(np.maximum(0.0, 1 - 1 / np.maximum(self.curvatures, 1e-300))))


def maximise_attention(
    posterior: AttentionPosterior,
    *,
    starts: int = 4,
    start: np.ndarray | None = None,
    seed: int = 0,
    tolerance: float = 1e-4,
    max_evaluations: int = 1000,
    report: Report = silent,
) -> list[AttentionMaximum]:
    """Maximise the posterior density of the parameters of attention, from several starts.

    Parameters
    ----------
    posterior : AttentionPosterior
    starts : int
        Number of draws from the prior that are starts; 0 only with ``start``.
    start : array, shape (dimension,), optional
        A further start, the first.
    seed : int
        Seed of the draws.
    tolerance : float
        Largest entry allowed in the gradient of the log density, in nats per prior deviation.
    max_evaluations : int
        Limit on evaluations from each start.
    report : callable
        Called with a Progress after every step.

    Returns
    -------
    list of AttentionMaximum
        Different maxima, the highest first, each with the number of starts that ended there. Ends
        of the same log density within 0.001 nats are one maximum.

    Raises
    ------
    ValueError
        If a number is out of range, or a start has no density.

    Warns
    -----
    OverfittingWarning
        If there are as many parameters as labels or more, symmetries not counted: the maximum then
        fits noise. Sample the posterior instead.
    UserWarning
        If a single start ended at the highest maximum, so that there may be higher ones; not where
        ``starts`` is 0.

    Notes
    -----
    The density has several maxima, and a start may seldom end at the highest, in 4 to 50 % of cases
    where it was counted: raise ``starts`` until several do. The highest need not be that of the
    most probability: compare their ``log_evidence``. A start that a symmetry keeps, such as rows of
    queries and keys that are both zero, may end on a saddle, whose ``log_volume`` is NaN: add noise
    to it.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> rng = np.random.default_rng(0)
    >>> inputs = rng.normal(size=(40, 6, 3))
    >>> labels = np.sign(inputs[np.arange(40), inputs[..., 0].argmax(1), 1])
    >>> heads = pk.KeyVectors(np.zeros((1, 3)))
    >>> posterior = pk.AttentionPosterior(inputs, labels, [heads], pk.Network((1,), 50), 0.1, 9.0)
    >>> best, *others = pk.maximise_attention(posterior)
    >>> best.converged, best.symmetries, best.starts
    (True, 0, 2)
    """
    starts = whole_number("starts", starts, 0 if start is not None else 1)
    tolerance = positive("tolerance", tolerance)
    max_evaluations = whole_number("max_evaluations", max_evaluations)
    _warn_of_parameters(posterior)
    generator = np.random.default_rng(seed)
    positions = [] if start is None else [np.asarray(start, dtype=float)]
    positions += [posterior.initial(generator) for _ in range(starts)]
    ends: list[_Ascent] = []
    counts: list[int] = []
    for number, position in enumerate(positions):
        doing = f"start {number + 1} of {len(positions)}"
        ascent = _Ascent(posterior, tolerance, max_evaluations, report, doing)
        ascent.run(position)
        for index, end in enumerate(ends):
            if abs(ascent.log_density - end.log_density) < _SAME:
                counts[index] += 1
                break
        else:
            ends.append(ascent)
            counts.append(1)
    by_height = sorted(zip(ends, counts), key=lambda pair: -pair[0].log_density)
    if starts and by_height[0][1] == 1:
        warnings.warn(
            f"one of {len(positions)} starts ended at the highest maximum found, so that there may "
            "be higher ones: raise starts until several end there, or sample the posterior",
            stacklevel=2,
        )
    return [end.maximum(count) for end, count in by_height]


class _Ascent:
    """Ascent from one start."""

    def __init__(
        self,
        posterior: AttentionPosterior,
        tolerance: float,
        max_evaluations: int,
        report: Report,
        doing: str,
    ):
        self.posterior, self.tolerance = posterior, tolerance
        self.max_evaluations, self.report, self.doing = max_evaluations, report, doing
        self.evaluations, self.converged = 0, False
        self.position = np.empty(0)
        self.density: AttentionDensity | None = None

    @property
    def log_density(self) -> float:
        """Log density at the end, in nats."""
        return self._end.log_density

    def run(self, position: np.ndarray) -> None:
        """Ascend until the tolerance is reached, or no step leads further."""
        self.density = self._evaluate(position)

        def stop(point: Iterate) -> bool:
            self.position, self.density = point.x, point.detail
            slope = float(np.abs(point.gradient).max())
            numbers = {"log density": -point.value, "gradient": slope}
            self.report(Progress(self.evaluations, None, self.doing, numbers))
            self.converged = slope <= self.tolerance
            return self.converged or self.evaluations >= self.max_evaluations

        # the prior has curvature 1 in every direction
        ascent = minimiser(position, np.ones(len(position)), stop)
        answer_all([ascent], lambda questions: [self._answer(x) for x in questions])

    def maximum(self, starts: int) -> AttentionMaximum:
        """Maximum with its volume, and the number of starts that ended there."""
        posterior, position = self.posterior, self.position
        tangents, log_orbit = orbits(posterior, position)
        normal = np.linalg.qr(tangents, mode="complete")[0][:, tangents.shape[1] :]
        curvatures = np.linalg.eigvalsh(self._hessian(normal))
        log_volume = math.nan
        if curvatures.min(initial=math.inf) > _FLAT:
            log_volume = 0.5 * float(np.sum(np.log(2 * math.pi / curvatures)))
            log_volume += log_orbit + _log_exchanges(posterior, position)
        return AttentionMaximum(
            position,
            self._end,
            curvatures,
            log_volume,
            tangents.shape[1],
            self.converged,
            self.evaluations,
            starts,
        )

    @property
    def _end(self) -> AttentionDensity:
        assert self.density is not None
        return self.density

    def _evaluate(self, position: np.ndarray) -> AttentionDensity:
        self.evaluations += 1
        start: Solution | None = None if self.density is None else self.density.solution
        return self.posterior.evaluate(position, start)

    def _answer(self, position: np.ndarray) -> Iterate:
        try:
            density = self._evaluate(position)
        except (MinimisationError, NotPositiveDefiniteError, ValueError):
            # a step too far, where scores overflow: the line search comes back from it
            return Iterate(position, math.inf, np.full_like(position, math.nan))
        return Iterate(position, -density.log_density, -density.gradient, density)

    def _hessian(self, directions: np.ndarray) -> np.ndarray:
        """Hessian of −ln p along orthonormal directions, one per column, by differences."""
        columns = []
        for direction in directions.T:
            ahead, behind = (
                self._evaluate(self.position + step * direction).gradient
                for step in (_STEP, -_STEP)
            )
            columns.append(directions.T @ (behind - ahead) / (2 * _STEP))
        hessian = np.array(columns).reshape(2 * (directions.shape[1],))
        return (hessian + hessian.T) / 2


def orbits(posterior: AttentionPosterior, position: np.ndarray) -> tuple[np.ndarray, float]:
    """Directions in which rotations of queries and keys move a position, and their orbit's volume.

    Returns
    -------
    tangents : array, shape (dimension, k)
        Orthonormal directions.
    log_volume : float
        Log of the orbit's k-dimensional volume.
    """
    columns, log_volume = [], 0.0
    for entries in _queries_and_keys(posterior):
        left, values, right = np.linalg.svd(position[entries], full_matrices=True)
        size, rank = len(left), int(np.sum(values > _RANK))
        values = np.where(np.arange(size) < rank, np.resize(values, size), 0.0)
        log_volume += sum(_log_sphere(dimension) for dimension in range(size - rank, size))
        for i, j in itertools.combinations(range(size), 2):
            if i >= rank:
                continue  # a rotation of rows that are zero
            radius = math.hypot(values[i], values[j])
            log_volume += math.log(radius)
            turned = np.outer(left[:, i], values[j] * right[j % len(right)])
            turned -= np.outer(left[:, j], values[i] * right[i])
            column = np.zeros(len(position))
            column[entries] = turned / radius
            columns.append(column)
    return np.array(columns).reshape(-1, len(position)).T, log_volume


def _queries_and_keys(posterior: AttentionPosterior) -> Iterator[np.ndarray]:
    """Entries of x, (G, 2 N_0), of each head whose queries and keys are learned."""
    entries = np.arange(posterior.dimension)
    of_arrays = {
        (number, name): entries[part].reshape(shape)
        for number, name, part, shape, _ in posterior.parts
    }
    for (number, name), queries in of_arrays.items():
        if name == "queries":
            yield from np.concatenate([queries, of_arrays[number, "keys"]], axis=2)


def _log_exchanges(posterior: AttentionPosterior, position: np.ndarray) -> float:
    """Log of the number of maxima that differ by an exchange of heads."""
    total = 0.0
    layers = posterior.layers_at(position)
    for number in {part[0] for part in posterior.parts}:
        heads = _products(layers[number])
        scale = _RANK * max(1e-300, np.abs(heads).max())
        different: list[np.ndarray] = []
        total += math.lgamma(len(heads) + 1)
        for head in heads:
            same = [np.abs(head - other).max() < scale for other in different]
            # heads that are equal exchange without another maximum: n!/Π m! of m equal ones
            total -= math.log(1 + sum(same))
            different.append(head)
    return total


def _products(layer: Layer) -> np.ndarray:
    """What of each head decides on its attention: KᵀQ of queries and keys."""
    if isinstance(layer, QueryKey):
        return np.einsum("hgi,hgj->hij", to_host(layer.keys), to_host(layer.queries))
    if isinstance(layer, AttentionProduct):
        return to_host(layer.products)
    return to_host(cast(KeyVectors, layer).vectors)


def _log_sphere(dimension: int) -> float:
    """Log of the surface of the unit sphere of a dimension, two points in dimension 0."""
    half = (dimension + 1) / 2
    return math.log(2) + half * math.log(math.pi) - math.lgamma(half)


def _warn_of_parameters(posterior: AttentionPosterior) -> None:
    turns = sum(len(head) * (len(head) - 1) // 2 for head in _queries_and_keys(posterior))
    parameters, labels = posterior.dimension - turns, math.prod(posterior.labels.shape)
    if parameters >= labels:
        warnings.warn(
            f"attention has {parameters} parameters, symmetries not counted, and there are "
            f"{labels} labels: the maximum overfits. Sample the posterior, learn KeyVectors or "
            "queries and keys of lower rank, or lower their prior variance",
            OverfittingWarning,
            stacklevel=3,
        )
