"""Posterior density of queries and keys, with all weights integrated out.

Given queries and keys the theory gives ln p(Y | Q, K) at the minimum of the action. With Gaussian
priors it is the log of a density over them,

    ln p(Y, Q, K) = ln p(Y | Q, K) − ‖Q‖²/2σ²_Q − ‖K‖²/2σ²_K + const,

whose gradient, by the envelope theorem, is that at a fixed order parameter: no implicit
differentiation. Parameters are scaled to a standard normal prior, x = (Q/σ_Q, K/σ_K).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np

from pathkernel_core.action.continuation import minimise_from
from pathkernel_core.action.minimise import minimise_action
from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.backend import Array, array_namespace, from_host, real_floating, to_host
from pathkernel_core.arrays.scalars import positive
from pathkernel_core.energy.problem import Problem, SpaceName
from pathkernel_core.paths.contraction import Readout, attentioned_inputs
from pathkernel_core.paths.layers import AttentionProduct, KeyVectors, Layer, QueryKey
from pathkernel_core.paths.network import Network
from pathkernel_core.paths.pullback import attention_gradients
from pathkernel_core.prediction.input_gradients import log_evidence_gradient

_NAMES: dict[type, tuple[str, ...]] = {
    QueryKey: ("queries", "keys"),
    AttentionProduct: ("products",),
    KeyVectors: ("vectors",),
}
"""Parameters of a layer, by its class."""

LayerVariances = float | Sequence[float] | None


@dataclass(frozen=True, eq=False)
class AttentionDensity:
    """Density of labels and parameters of attention at a position.

    Attributes
    ----------
    log_density : float
        ln p(Y, x) in nats, normalised: its integral over x is the evidence p(Y).
    gradient : array, shape (dimension,)
        Gradient of the log density with respect to x.
    log_evidence : float
        ln p(Y | x), without the prior of x.
    solution : Solution
        Minimum of the action given x, with the predictor.
    """

    log_density: float
    gradient: np.ndarray = field(repr=False)
    log_evidence: float
    solution: Solution = field(repr=False)


@dataclass(frozen=True, eq=False)
class AttentionPosterior:
    """Posterior density of the parameters of attention, with all weights integrated out.

    Parameters
    ----------
    inputs : array, shape (P, M, N_0)
        Token sequences.
    labels : array, shape (P,) or (P, C)
    layers : sequence of Layer
        Form of the attention of each layer: :class:`QueryKey`, whose products W = KᵀQ have rank G,
        :class:`AttentionProduct` or :class:`KeyVectors`. Their arrays give the shapes, and a start.
        Layers of other kinds are as given.
    network : Network
    temperature : float
        Positive Gibbs temperature T.
    variances : float, or sequence of L of them
        Prior variance of the parameters' entries, one for all layers or one for each; for
        :class:`QueryKey` also a pair, σ²_Q and σ²_K. None stands for a layer whose heads are given.
    readout, space, tolerance
        As for :func:`attentioned_inputs`, :class:`Problem` and :func:`minimise_action`.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit the network, a number is out of range, no layer has parameters to
        learn, or a width is smaller than its order parameter, where ln p(Y | Q, K) is not defined.

    Notes
    -----
    The density is that of the saddle point, with an error of relative order 1/N. It is a function
    of a minimum: where two minima of the action cross, its gradient jumps.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> rng = np.random.default_rng(0)
    >>> inputs, labels = rng.normal(size=(20, 6, 5)), np.sign(rng.normal(size=20))
    >>> heads = pk.KeyVectors(np.zeros((2, 5)))
    >>> posterior = pk.AttentionPosterior(inputs, labels, [heads], pk.Network((2,), 20), 0.1)
    >>> posterior.dimension
    10
    >>> posterior.evaluate(posterior.initial(rng)).gradient.shape
    (10,)
    """

    inputs: Array = field(repr=False)
    labels: Array = field(repr=False)
    layers: Sequence[Layer] = field(repr=False)
    network: Network
    temperature: float
    variances: LayerVariances | Sequence[LayerVariances] = 1.0
    readout: Readout = "last"
    space: SpaceName = "auto"
    tolerance: float | None = None

    def __post_init__(self):
        array_namespace(inputs=self.inputs, labels=self.labels)
        positive("temperature", self.temperature)
        heads = tuple(layer.n_heads for layer in self.layers)
        if heads != self.network.heads:
            raise ValueError(
                f"network has heads {self.network.heads}, but layers have {heads}; build it from "
                "these layers"
            )
        if not self.network.shared:
            raise ValueError(
                "network must have heads that share their weights: leave shared=False out"
            )
        for level, (width, size) in enumerate(zip(self.network.widths, self.network.sizes), 1):
            if width < size:
                raise ValueError(
                    f"width N_{level} = {width:g} is smaller than the size {size} of its order "
                    "parameter, whose log evidence is not defined at the saddle point; use a width "
                    f"of at least {size}"
                )
        object.__setattr__(self, "variances", _variances(self.variances, self.layers))
        if not self.dimension:
            raise ValueError(
                "no layer has parameters to learn: give at least one as QueryKey, "
                "AttentionProduct or KeyVectors, with a prior variance that is not None"
            )

    @cached_property
    def parts(self) -> tuple[tuple[int, str, slice, tuple[int, ...], float], ...]:
        """Layer (from 0), name, part of x, shape and deviation σ of each array of parameters."""
        parts, start = [], 0
        for number, (layer, variances) in enumerate(zip(self.layers, cast(Any, self.variances))):
            for name, variance in zip(_NAMES.get(type(layer), ()), variances or ()):
                shape = tuple(getattr(layer, name).shape)
                stop = start + math.prod(shape)
                parts.append((number, name, slice(start, stop), shape, math.sqrt(variance)))
                start = stop
        return tuple(parts)

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return self.parts[-1][2].stop if self.parts else 0

    def initial(self, generator: np.random.Generator) -> np.ndarray:
        """Draw x (dimension,) from the prior."""
        return generator.standard_normal(self.dimension)

    @property
    def start(self) -> np.ndarray:
        """Parameters x (dimension,) of the layers as they were given."""
        return self.position_of(self.layers)

    def position_of(self, layers: Sequence[Layer]) -> np.ndarray:
        """Parameters x (dimension,) of layers of the same form."""
        position = np.empty(self.dimension)
        for number, name, part, shape, deviation in self.parts:
            array = to_host(getattr(layers[number], name))
            if array.shape != shape:
                raise ValueError(
                    f"{name} of layer {number + 1} must have shape {shape}, but has {array.shape}"
                )
            position[part] = array.reshape(-1) / deviation
        return position

    def layers_at(self, position: Array) -> list[Layer]:
        """Layers with the parameters x (dimension,).

        Their arrays are NumPy's, or of the library of the inputs, which may differentiate through
        them.
        """
        position = real_floating("position", position, (self.dimension,))
        arrays: list[list[Array]] = [[] for _ in self.layers]
        for number, _, part, shape, deviation in self.parts:
            array = (deviation * position[part]).reshape(shape)
            arrays[number].append(from_host(array, self.inputs))
        layers: list[Layer] = []
        for layer, of_layer in zip(self.layers, arrays):
            named = dict(zip(_NAMES.get(type(layer), ()), of_layer))
            layers.append(dataclasses.replace(cast(Any, layer), **named) if named else layer)
        return layers

    def solve(self, position: np.ndarray, start: Solution | None = None) -> Solution:
        """Minimise the action given x; parameters and errors as for :meth:`evaluate`."""
        return self._solve(self.layers_at(position), start)[0]

    def evaluate(self, position: np.ndarray, start: Solution | None = None) -> AttentionDensity:
        """Log density and its gradient at x (dimension,).

        Parameters
        ----------
        position : array, shape (dimension,)
        start : Solution, optional
            At a position nearby, from which the minimisation starts. Where the action may have
            several minima it searches for the lowest, so that the density depends on x alone.

        Raises
        ------
        MinimisationError, NotPositiveDefiniteError, ValueError
            As :func:`attentioned_inputs` and :func:`minimise_action` do.
        """
        position = real_floating("position", np.asarray(position), (self.dimension,)).astype(float)
        layers = self.layers_at(position)
        solution, xi = self._solve(layers, start)
        of_xi = log_evidence_gradient(solution, xi, self.labels)
        gradient = self.pull_back(layers, of_xi) - position
        prior = -0.5 * (position @ position + self.dimension * math.log(2 * math.pi))
        log_evidence = solution.log_evidence
        return AttentionDensity(float(prior + log_evidence), gradient, log_evidence, solution)

    def pull_back(self, layers: Sequence[Layer], xi_gradient: Array) -> np.ndarray:
        """Gradient with respect to x (dimension,) from that with respect to ξ, (P, n, N_0)."""
        of_layers = attention_gradients(
            self.inputs, layers, xi_gradient, self.readout, self.network.skips
        )
        gradient = np.empty(self.dimension)
        for number, name, part, _, deviation in self.parts:
            of_layer = cast("tuple[Array, ...]", of_layers[number])
            of_array = of_layer[_NAMES[type(self.layers[number])].index(name)]
            gradient[part] = deviation * to_host(of_array).reshape(-1)
        return gradient

    def attend(self, layers: Sequence[Layer], inputs: Array | None = None) -> Array:
        """Attentioned inputs ξ (P, n, N_0) of these layers, of the training inputs or others."""
        inputs = self.inputs if inputs is None else inputs
        return attentioned_inputs(inputs, layers, self.readout, skips=self.network.skips)

    def _solve(self, layers: Sequence[Layer], start: Solution | None) -> tuple[Solution, Array]:
        xi = self.attend(layers)
        problem = Problem(xi, self.labels, self.space)
        settings = problem, self.network, self.temperature
        solution = minimise_from(*settings, start, tolerance=self.tolerance)
        if solution is None or not solution.status.ok:  # raises, with its reason
            solution = minimise_action(*settings, tolerance=self.tolerance)
        return solution, xi


def _variances(variances: Any, layers: Sequence[Layer]) -> tuple[tuple[float, ...] | None, ...]:
    """Prior variances of the arrays of each layer, or None for a layer that is given."""
    if variances is None or not isinstance(variances, Sequence):
        variances = [variances] * len(layers)
    if len(variances) != len(layers):
        raise ValueError(
            f"variances must be one for all or one for each of {len(layers)} layers, but has "
            f"{len(variances)}"
        )
    checked: list[tuple[float, ...] | None] = []
    for number, (layer, of_layer) in enumerate(zip(layers, variances), start=1):
        names = _NAMES.get(type(layer), ())
        if of_layer is None or not names:
            checked.append(None)
            continue
        if not isinstance(of_layer, Sequence):
            of_layer = [of_layer] * len(names)
        if len(of_layer) != len(names):
            raise ValueError(
                f"variances of layer {number} must be one number or one for each of its "
                f"{' and '.join(names)}, but has {len(of_layer)}"
            )
        checked.append(tuple(positive("each of variances", value) for value in of_layer))
    return tuple(checked)
