"""Scores of heads by which they are removed: the table of all, and those of a trained network.

Heads of low scores are removed first. The command line, legends and docs/pruning.md read the table.
Help texts need it too, so that xarray is imported where scores are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pathkernel_core.paths.heads import every_head
from pathkernel_core.paths.network import Network
from pathkernel_core.paths.order_parameter import head_scores

if TYPE_CHECKING:
    import xarray as xr

    from pathkernel_datasets.results.point import Point
    from pathkernel_trained.evaluator import PathOutputs
    from pathkernel_trained.path_network import PathNetwork


Values = tuple[np.ndarray, ...]
"""Scores of all heads, (ΣH_ℓ,), and their standard errors if known."""


@dataclass(frozen=True, eq=False)
class ScoreSources:
    """Data from which scores are computed.

    Attributes
    ----------
    study : xarray.Dataset
    points : sequence of Point
        Points of the study whose order parameters score heads.
    draws : mapping of Point to xarray.DataArray
        Draws of U.
    losses : xarray.Dataset
        From :func:`pathkernel_trained.theory_drops.theory_drops`.
    network : PathNetwork
    outputs : PathOutputs
        On the examples that heads are scored on.
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
    of_points : bool
        Whether there is an order for every point of the study, such as ``theory N=10``.
    compute : callable, optional
        Scores, and their standard errors if known, by the label of their order; without it
        :func:`pathkernel_pruning.heads.orders.compare_orders` computes them for any network.
    """

    name: str
    needs: str
    meaning: str
    compute: Callable[[ScoreSources], Mapping[str, Values]] | None = None
    of_points: bool = False


def trained_scores(network: PathNetwork) -> np.ndarray:
    """Scores from the trained weights' order parameter, the largest 1, (ΣH_ℓ,)."""
    theory = Network(network.shape.heads_per_layer, network.width)
    return head_scores(theory, network.order_parameter)


def path_gradient_scores(outputs: PathOutputs, *, normalised: bool = True) -> np.ndarray:
    """Mean over examples of |∂(f − y)²/∂m_h|, with a factor m_h = 1 in front of head h, (ΣH_ℓ,).

    This is the importance of Michel, Levy and Neubig (NeurIPS 2019), who divide it by its ℓ2 norm
    over the heads of a layer, if ``normalised``: all layers are then equally important, and the
    only head of a layer has 1. As f is linear in m_h, the derivative is 2 (f − y) f_h, where f_h is
    the part of f that passes through the head.
    """
    from pathkernel_pruning.heads.heads import normalised_in_layers

    through_heads = outputs.values @ outputs.through / np.sqrt(outputs.values.shape[1])
    misfit = outputs.output() - outputs.labels
    scores = np.mean(np.abs(2 * misfit[:, None] * through_heads), axis=0)
    return normalised_in_layers(scores, outputs.heads) if normalised else scores


def computed_scores(sources: ScoreSources) -> dict[str, xr.DataArray]:
    """Scores of all kinds that have a function, by the label of their order, dims (head,)."""
    from pathkernel_datasets.variables.head_axis import scores_by_head

    heads = every_head(sources.network.shape.heads_per_layer)
    return {
        label: scores_by_head(heads, *values, needs=score.needs)
        for score in SCORES
        if score.compute is not None
        for label, values in score.compute(sources).items()
    }


def _curvature(sources: ScoreSources) -> dict[str, Values]:
    from pathkernel_trained.gains import path_curvature_scores

    return {"curvature": (path_curvature_scores(sources.outputs),)}


def _renewed_curvature(sources: ScoreSources) -> dict[str, Values]:
    from pathkernel_trained.gains import renewed_scores

    return {"renewed-curvature": (renewed_scores(sources.outputs),)}


def _theory(sources: ScoreSources) -> dict[str, Values]:
    from pathkernel_trained.theory_scores import order_label, theory_scores

    return {
        order_label("theory", point): (theory_scores(sources.study, point),)
        for point in sources.points
    }


def _sampled_scores(sources: ScoreSources) -> dict[str, Values]:
    from pathkernel_trained.theory_scores import order_label, sampled_head_scores

    return {
        order_label("sampled", point): sampled_head_scores(sources.study, sources.draws[point])
        for point in sources.points
        if point in sources.draws
    }


def _theory_loss(sources: ScoreSources, prediction: str) -> dict[str, Values]:
    """Rise of the theory's error; no scores if it is unknown for a head that can be removed."""
    from pathkernel_pruning.heads.heads import are_removable

    rises = sources.losses["theory_error_rise"].sel(prediction=prediction).values
    is_complete = np.isfinite(rises[are_removable(sources.network.shape.heads_per_layer)]).all()
    return {prediction: (rises,)} if is_complete else {}


_RISE = "rise of the theory's own squared error on validation examples without h, at the first N:"
SCORES = (
    Score(
        "theory",
        "theory",
        "Σ |U_ππ'| over the pairs of paths of which one or both pass through h, divided by the "
        "largest; U from the study",
        _theory,
        of_points=True,
    ),
    Score(
        "sampled",
        "theory",
        "the same of the posterior mean of U, where `pathkernel sample` has drawn at that point; "
        "its error is a jackknife over ten blocks of each chain",
        _sampled_scores,
        of_points=True,
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
        lambda sources: {"trained": (trained_scores(sources.network),)},
    ),
    Score(
        "gradient",
        "examples",
        "`raw-gradient`, divided by its ℓ2 norm over the heads of the layer, as Michel, Levy and "
        "Neubig (NeurIPS 2019) do",
        lambda sources: {"gradient": (path_gradient_scores(sources.outputs),)},
    ),
    Score(
        "raw-gradient",
        "examples",
        "mean of |∂(f − y)²/∂m_h| over validation examples, with a factor m_h = 1 before h",
        lambda sources: {
            "raw-gradient": (path_gradient_scores(sources.outputs, normalised=False),)
        },
    ),
    Score(
        "magnitude",
        "weights",
        "Frobenius norm of the value weights V^{ℓh}",
        lambda sources: {"magnitude": (np.concatenate(sources.network.value_norms),)},
    ),
    Score(
        "curvature",
        "examples",
        "rise of the mean squared error on validation examples when the factor m_h before h "
        "becomes 0, −g + ½ G: to second order, which is exact here; the layer is not rescaled",
        _curvature,
    ),
    Score(
        "renewed-curvature",
        "examples",
        "step at which h goes by `curvature` and the entries of G between heads, computed again "
        "when a quarter of the heads that are left has gone; the factors of the rest are refitted, "
        "and three more heads than go are tried",
        _renewed_curvature,
    ),
    Score("ablation", "examples", "loss on validation examples when h alone is removed"),
    Score(
        "shapley",
        "examples",
        "Shapley value of h on validation examples: its gain next to the heads that are present, "
        "averaged over orders of arrival",
    ),
    Score(
        "greedy",
        "examples",
        "at every step the head whose removal costs least on validation examples",
    ),
    Score(
        "best-of",
        "examples",
        "of K random sets of each size the one whose removal costs least on validation examples; "
        "the sets need not contain one another, and score no single heads",
    ),
)
"""All kinds of scores, in the sequence of their orders in a comparison; new ones come last.

The first is the reference of differences, and has a point of the study.
"""

NEEDS = {score.name: score.needs for score in SCORES}
"""Name of a score → its ``needs``."""
