"""Scores of heads by which they are removed: the table of all, and those of a trained network.

Heads of low scores are removed first. The command line, legends and docs/pruning.md read the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pathkernel_core.network import Network
from pathkernel_core.order_parameter import head_scores
from pathkernel_trained.heads import are_removable, per_layer

if TYPE_CHECKING:
    import xarray as xr

    from pathkernel_datasets.point import Point
    from pathkernel_trained.evaluator import PathOutputs
    from pathkernel_trained.path_network import PathNetwork


class HeadScores(NamedTuple):
    """Scores of all heads, (ΣH_ℓ,) or (C, ΣH_ℓ) of C draws, with standard errors if known."""

    values: np.ndarray
    errors: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Material:
    """All that scores are computed from: the study, its losses, and its trained network.

    ``points`` are those of the study whose order parameters score heads, ``draws`` the draws of U
    by point, ``losses`` of :func:`pathkernel_trained.theory_drops.theory_drops`, and ``outputs``
    path outputs on the examples that heads are scored on.
    """

    study: xr.Dataset
    points: Sequence[Point]
    draws: Mapping[Point, xr.DataArray]
    losses: xr.Dataset
    network: PathNetwork
    outputs: PathOutputs


@dataclass(frozen=True)
class Score:
    """A kind of score.

    Attributes
    ----------
    name : str
        First word of the order's label.
    needs : str
        ``theory``, the ``weights`` of the trained network, or it and labelled ``examples``.
    meaning : str
    compute : callable, optional
        Scores by the label of their order; :func:`pathkernel_trained.orders.compare_orders`
        computes those that have none, of any network.
    """

    name: str
    needs: str
    meaning: str
    compute: Callable[[Material], Mapping[str, HeadScores]] | None = None


def trained_scores(network: PathNetwork) -> np.ndarray:
    """Scores from the trained weights' order parameter, the largest 1, (ΣH_ℓ,)."""
    theory = Network(network.shape.heads_per_layer, network.width)
    return np.concatenate(head_scores(theory, network.order_parameter))


def gradient_scores(outputs: PathOutputs, *, normalised: bool = True) -> np.ndarray:
    """Mean over examples of |∂(f − y)²/∂m_h|, with a factor m_h = 1 in front of head h, (ΣH_ℓ,).

    This is the importance of Michel, Levy and Neubig (NeurIPS 2019), who divide it by its ℓ2 norm
    over the heads of a layer, if ``normalised``: all layers are then equally important as a whole,
    and the only head of a layer has 1. As f is linear in m_h, the derivative is 2 (f − y) f_h,
    where f_h is the part of f that passes through the head.
    """
    parts = outputs.values @ outputs.through / np.sqrt(outputs.values.shape[1])
    misfit = outputs.output() - outputs.labels
    scores = np.mean(np.abs(2 * misfit[:, None] * parts), axis=0)
    if not normalised:
        return scores
    layers = per_layer(scores, outputs.heads)
    return np.concatenate([layer / (np.linalg.norm(layer) or 1.0) for layer in layers])


def _theory(of: Material) -> dict[str, HeadScores]:
    from pathkernel_trained.theory_scores import label, theory_scores

    return {label("theory", at): HeadScores(theory_scores(of.study, at)) for at in of.points}


def _sampled(of: Material) -> dict[str, HeadScores]:
    from pathkernel_trained.theory_scores import label, sampled_scores

    drawn = [at for at in of.points if at in of.draws]
    return {
        label("sampled", at): HeadScores(*sampled_scores(of.study, of.draws[at])) for at in drawn
    }


def _theory_loss(of: Material, prediction: str) -> dict[str, HeadScores]:
    """Rise of the theory's error; none if some head's removal leaves the action no minimum."""
    table = of.losses["theory_error_rise"].sel(prediction=prediction).values
    rises = np.concatenate(
        [row[:count] for row, count in zip(table, of.network.shape.heads_per_layer)]
    )
    are_known = np.isfinite(rises[are_removable(of.network.shape.heads_per_layer)]).all()
    return {prediction: HeadScores(rises)} if are_known else {}


_RISE = "rise of the theory's own squared error on validation examples without h, at the first N:"
SCORES = (
    Score(
        "theory",
        "theory",
        "Σ |U_ππ'| over the pairs of paths of which one or both pass through h, divided by the "
        "largest; U from the study",
        _theory,
    ),
    Score(
        "sampled",
        "theory",
        "the same of the posterior mean of U, where `pathkernel sample` has drawn at that point; "
        "its error is a jackknife over ten stretches of each chain",
        _sampled,
    ),
    *(
        Score(name, "theory", f"{_RISE} {how}", partial(_theory_loss, prediction=name))
        for name, how in (
            ("silenced", "rows and columns of U are 0, and the predictor is fitted again"),
            ("restricted", "the mean predictor loses the paths through h"),
            ("re-equilibrated", "the action is minimised again"),
        )
    ),
    Score(
        "trained",
        "weights",
        "Σ |U_ππ'| of the trained weights' own U (Eq. 13)",
        lambda of: {"trained": HeadScores(trained_scores(of.network))},
    ),
    Score(
        "gradient",
        "examples",
        "`raw-gradient`, divided by its ℓ2 norm over the heads of the layer, as Michel, Levy and "
        "Neubig (NeurIPS 2019) do",
        lambda of: {"gradient": HeadScores(gradient_scores(of.outputs))},
    ),
    Score(
        "raw-gradient",
        "examples",
        "mean of |∂(f − y)²/∂m_h| over validation examples, with a factor m_h = 1 before h",
        lambda of: {"raw-gradient": HeadScores(gradient_scores(of.outputs, normalised=False))},
    ),
    Score(
        "magnitude",
        "weights",
        "Frobenius norm of the value weights V^{ℓh}",
        lambda of: {"magnitude": HeadScores(np.concatenate(of.network.value_norms))},
    ),
    Score("ablation", "examples", "loss on validation examples when h alone is removed"),
    Score(
        "shapley",
        "examples",
        "Shapley value of h on validation examples: its gain beside the heads that are there "
        "already, averaged over orders of arrival",
    ),
    Score(
        "greedy",
        "examples",
        "at every step the head goes without which least is lost on validation examples",
    ),
    Score(
        "best-of",
        "examples",
        "of K random sets of each size the one without which least is lost on validation examples; "
        "the sets need not contain one another, and score no single heads",
    ),
)
"""All kinds of scores; in a comparison orders have their sequence."""

NEEDS = {score.name: score.needs for score in SCORES}
"""Name of a score → its ``needs``."""


def kind_of(order: str) -> str:
    """Name of the score of an order, such as ``theory`` of ``theory N=10``."""
    return order.partition(" ")[0]
