"""Comparison of a trained network's order parameter with a study's, as a labelled dataset."""

from __future__ import annotations

import os

import numpy as np
import xarray as xr

from pathkernel_core.contracts.analysis import Variable
from pathkernel_core.paths.network import Network
from pathkernel_core.paths.order_parameter import head_scores
from pathkernel_datasets.results.draws import order_parameter_draws
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.selection.selection import NOT_COMPUTED
from pathkernel_datasets.study.study import POINT
from pathkernel_datasets.variables.labelling import coordinate, coordinates_along, label_arrays
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_trained.comparison import compare_order_parameters
from pathkernel_trained.study_checkpoint import study_checkpoint

_MATRIX = ("path", "path_dual")
_GRID = ("source", *POINT, "statistic")
_VARIABLES = (
    Variable("order_parameter_trained", _MATRIX, "order parameter U of the trained network"),
    Variable(
        "order_parameter_sampled",
        (*POINT, *_MATRIX),
        "order parameter U, posterior mean of the draws in the store",
    ),
    Variable(
        "agreement", _GRID, "agreement of the order parameter with that of the trained network"
    ),
    Variable("p_value", _GRID, "fraction of relabellings of heads that agree at least as well"),
    Variable(
        "head_score_trained",
        ("head",),
        "weight of the trained network's U on the paths through a head, largest 1",
    ),
)
_COORDINATES = {
    "source": "source of the order parameter that is compared with the trained one",
    "statistic": "measure of the agreement",
    "meaning": "description of the statistic",
}


def compare_with_trained(study: StoredStudy, checkpoint: str | os.PathLike | None) -> xr.Dataset:
    """Compare a study's order parameters with that of the network that its heads come from.

    The trained U is at the scale of the theory's weights; values of the source ``sampled`` are NaN
    where there are no draws. Raises as
    :func:`pathkernel_trained.study_checkpoint.study_checkpoint`.
    """
    file, trained = study_checkpoint(study, checkpoint)
    dataset = study.dataset
    network = Network(dataset.attrs["heads_per_layer"], widths=trained.width)
    theory = dataset["order_parameter"].where(dataset["status"] != NOT_COMPUTED)
    theory = theory.transpose(*POINT, *_MATRIX)
    sampled = xr.full_like(theory, np.nan)
    for point, draws in order_parameter_draws(study).items():
        mean = draws.mean(("chain", "draw")).transpose(*_MATRIX)
        sampled.loc[{name: getattr(point, name) for name in POINT}] = mean.values
    sources = {"theory": theory.values, "sampled": sampled.values}
    agreement = compare_order_parameters(
        network, np.stack([*sources.values()]), trained.order_parameter
    )
    values = {
        "order_parameter_trained": trained.order_parameter,
        "order_parameter_sampled": sources["sampled"],
        "agreement": agreement.values,
        "p_value": agreement.p_values,
        "head_score_trained": head_scores(network, trained.order_parameter),
    }
    coordinates = coordinates_along(
        dataset, {dim for variable in _VARIABLES for dim in variable.dims}
    )
    for name, dim, entries in (
        ("source", "source", tuple(sources)),
        ("statistic", "statistic", [statistic.name for statistic in agreement.statistics]),
        ("meaning", "statistic", [statistic.long_name for statistic in agreement.statistics]),
    ):
        coordinates[name] = coordinate(dim, entries, _COORDINATES[name])
    attributes = {
        "checkpoint": str(checkpoint or study.identity["options"]["heads"]),
        "checkpoint_sha256": heads_digest(file),
        "trained_width": trained.width,
        "relabellings": agreement.relabellings,
        "relabellings_are": "all" if agreement.exact else "drawn at random",
        **{
            f"trained_{name}": trained.about[name]
            for name in ("step", "validation_accuracy")
            if name in trained.about
        },
    }
    return label_arrays(values, _VARIABLES, coordinates, attributes)
