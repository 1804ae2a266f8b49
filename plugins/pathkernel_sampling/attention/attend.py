"""Learned attention at a point of a study: its chains, and what is kept of the draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np
import xarray as xr

from pathkernel_core.arrays.backend import Array
from pathkernel_core.contracts.analysis import Variable
from pathkernel_core.contracts.sampler import Model
from pathkernel_core.learned.posterior import AttentionPosterior
from pathkernel_core.paths.heads import every_head
from pathkernel_core.paths.layers import AttentionProduct, KeyVectors, Layer, QueryKey
from pathkernel_core.paths.order_parameter import head_scores
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.variables.head_axis import head_coordinates
from pathkernel_datasets.variables.labelling import coordinate, label_arrays
from pathkernel_datasets.variables.measures import MEASURES, Predictions
from pathkernel_sampling.attention.models import JointModel, MarginalModel, attention_model
from pathkernel_sampling.chains.ensemble import Chains
from pathkernel_sampling.results import LearnedAttention

ATTENDING = 50  # test examples on which the attention of draws is summed up
SHOWN = 8  # test examples whose mean attention is kept
_DRAWS = 400  # of all chains, whose attention is averaged


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionChains(Chains):
    """Chains of a model of attention at a point of a study."""

    attention: AttentionPosterior

    @property
    def test_inputs(self) -> list[Array]:
        """Token sequences of every test set."""
        test_sets = self.point.data.realisation.test_sets
        return [np.asarray(examples.inputs, dtype=float) for examples in test_sets.values()]

    @property
    def keeps_positions(self) -> bool:
        """True: the positions hold the attention."""
        return True

    def posterior(self, positions: np.ndarray, matrices: np.ndarray) -> dict[str, np.ndarray]:
        """U and the tokens that heads attend to, with the heads of each layer in order.

        The order is that of their scores in the draw, so that no exchange of heads shows: means and
        diagnostics would else be those of which head has which number.
        """
        network = self.attention.network
        ordered, attended = np.empty_like(matrices), []
        inputs = self.test_inputs[0][:ATTENDING]
        for index in np.ndindex(matrices.shape[:2]):
            orders = orders_of_heads(self.attention, matrices[index])
            paths = order_of_paths(self.attention, orders)
            ordered[index] = matrices[index][np.ix_(paths, paths)]
            omegas = self.attention_at(positions[index], inputs, orders)
            # the entropy of each query's attention, averaged over queries and examples
            entropy = [
                -np.sum(omega * np.log(np.maximum(omega, 1e-300)), axis=2).mean((0, 2))
                for omega in omegas
            ]
            attended.append(np.exp(np.concatenate(entropy)))
        shape = (*matrices.shape[:2], sum(network.heads))
        return {"order_parameter": ordered, "attended_tokens": np.reshape(attended, shape)}

    def attention_at(
        self, position: np.ndarray, inputs: np.ndarray, orders: list[np.ndarray]
    ) -> list[np.ndarray]:
        """Attention (examples, H, M, M or 1) of each layer at a position, heads in an order.

        The last layer's is that of the token that is read out.
        """
        omegas = self.attention_of(self.layers_at(position), inputs)
        return [omega[:, order] for omega, order in zip(omegas, orders)]

    def layers_at(self, position: np.ndarray) -> list[Layer]:
        """Layers at a position of the model."""
        model = self.model
        assert isinstance(model, JointModel | MarginalModel)
        return self.attention.layers_at(np.asarray(model.attention(position)))

    def attention_of(self, layers: Sequence[Layer], inputs: np.ndarray) -> list[np.ndarray]:
        """Attention (examples, H, M, M or 1) of layers; of the last one at the token read out."""
        queries = [None] * (len(layers) - 1) + [self._read_out]
        return [layer.attention(inputs, query=query) for layer, query in zip(layers, queries)]

    @cached_property
    def _read_out(self) -> int | None:
        readout, tokens = self.attention.readout, self.attention.inputs.shape[1]
        if readout == "mean":
            return None
        named = {"first": 0, "last": tokens - 1}
        return named[readout] if isinstance(readout, str) else readout % tokens


def orders_of_heads(posterior: AttentionPosterior, matrix: np.ndarray) -> list[np.ndarray]:
    """Heads of each layer, from 0, by decreasing score at U (n·C, n·C)."""
    scores = head_scores(posterior.network, matrix)
    by_layer = np.split(scores, np.cumsum(posterior.network.heads)[:-1])
    return [np.argsort(-of_layer, kind="stable") for of_layer in by_layer]


def order_of_paths(posterior: AttentionPosterior, orders: list[np.ndarray]) -> np.ndarray:
    """Rows of U, (n·C,), as they stand when the heads of each layer have an order."""
    network = posterior.network
    steps = [
        order if skip is None else np.concatenate([[0], order + 1])
        for order, skip in zip(orders, network.skips)
    ]
    rows = np.arange(network.sizes[0]).reshape(*network.steps, network.outputs)
    return rows[np.ix_(*steps, np.arange(network.outputs))].reshape(-1)


def attention_chains(
    study: StoredStudy,
    point: Point,
    settings: LearnedAttention,
    kind: type[AttentionChains] = AttentionChains,
) -> AttentionChains:
    """Build the chains of a point of a study from its data, which are drawn again.

    ``kind`` is the class of the chains.

    Raises
    ------
    StudyError
        If the study has no attention to learn: its inputs stand for paths already, or it has a
        kernel of tokens.
    """
    rebuilt = study.rebuild(point)
    data, realisation = rebuilt.data, rebuilt.data.realisation
    if any(getattr(layer, "tokens_are_paths", False) for layer in realisation.layers):
        raise StudyError(
            f"{study.path} has inputs that stand for paths through its heads, whose attention is "
            "in them; learn attention in a study of tokens"
        )
    if study.options.get("token_kernel") not in (None, "linear"):
        raise StudyError(
            f"{study.path} has a kernel of tokens, under which attention is not learned; run the "
            "study with --token-kernel linear"
        )
    network = rebuilt.network
    sigma, *others = network.variances
    # attentioned inputs are multiplied by a factor, which is that of a prior deviation
    network = dataclasses.replace(network, variances=(sigma * data.scale**2, *others))
    inputs = np.asarray(realisation.train.inputs, dtype=float)
    width = inputs.shape[2]
    posterior = AttentionPosterior(
        inputs,
        data.labels,
        [_form(settings, heads, width) for heads in network.heads],
        network,
        point.temperature,
        settings.variance,
        realisation.readout,
    )
    model = attention_model(settings.sampler, posterior)
    return kind(model, rebuilt, settings.thin, attention=posterior)


def _form(settings: LearnedAttention, heads: int, width: int) -> Layer:
    """Layer of heads of the form that is learned; scores of order 1 at tokens of order 1."""
    if settings.form == "key-vectors":
        return KeyVectors(np.zeros((heads, width)))
    if settings.form == "queries-keys":
        zeros = np.zeros((heads, settings.rank, width))
        return QueryKey(zeros, zeros)
    return AttentionProduct(np.zeros((heads, width, width)), 1 / width)


def mean_attention(chains: AttentionChains, positions: np.ndarray) -> xr.Dataset:
    """Mean over draws of the attention of each head to each token of some test examples.

    Heads of a layer are in the order of their scores in each draw.

    Parameters
    ----------
    chains : AttentionChains
    positions : array, shape (chain, draw, dimension)
    """
    posterior, flat = chains.attention, positions.reshape(-1, positions.shape[-1])
    step = max(1, len(flat) // _DRAWS)
    inputs = chains.test_inputs[0][:SHOWN]
    total, chosen = 0.0, flat[::step]
    for position in chosen:
        matrix = np.asarray(_order_parameter(chains.model, position))
        omegas = chains.attention_at(position, inputs, orders_of_heads(posterior, matrix))
        by_head = np.concatenate([omega.mean(axis=3) for omega in omegas], axis=1)
        total = total + by_head
    heads = every_head(posterior.network.heads)
    first = next(iter(chains.point.data.realisation.test_sets))
    return label_arrays(
        {"attention": np.swapaxes(total / len(chosen), 0, 1)},
        [
            Variable(
                "attention",
                ("head", "example", "token"),
                "mean attention of the head to the token; of the last layer from the token read "
                "out, of others over all queries",
            )
        ],
        {
            **head_coordinates(heads),
            "example": coordinate("example", range(len(inputs)), f"example of {first}", "1"),
            "token": coordinate("token", range(inputs.shape[1]), "key token", "1"),
        },
    )


@jax.jit
def _order_parameter(model: Model, position: Array) -> Array:
    return model.order_parameter(position)


def random_heads(chains: AttentionChains, count: int) -> xr.Dataset:
    """Measures on the test sets of heads drawn from the prior, at the saddle point."""
    posterior, point = chains.attention, chains.point
    data, generator = point.data, np.random.default_rng((point.point.seed, 1))
    measures = MEASURES[data.realisation.kind]
    values = np.empty((len(measures), count, len(data.test_sets)))
    for draw in range(count):
        position = posterior.initial(generator)
        solution, layers = posterior.solve(position), posterior.layers_at(position)
        for number, (inputs, (_, labels)) in enumerate(
            zip(chains.test_inputs, data.test_sets.values())
        ):
            prediction = solution.predict(posterior.attend(layers, inputs))
            predictions = Predictions(
                np.asarray(prediction.mean)[None] + data.offset,
                np.asarray(labels),
                np.asarray(prediction.variance)[None],
                point.point.temperature,
            )
            values[:, draw, number] = [measure.function(predictions) for measure in measures]
    variables = [
        Variable(measure.name, ("random", "test_set"), f"{measure.name} of random heads", "1")
        for measure in measures
    ]
    return label_arrays(
        dict(zip((measure.name for measure in measures), values)),
        variables,
        {
            "random": coordinate("random", range(count), "draw of heads from the prior", "1"),
            "test_set": coordinate("test_set", data.test_sets, "test set"),
        },
    )
