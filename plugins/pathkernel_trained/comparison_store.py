"""The order parameter of a trained network beside a study's: computed, kept in the study's store.

The group ``comparison`` of the store holds U of the network whose queries and keys the study takes,
how well it agrees with the theory's U at every point of the grid, and with the sampled one where
draws are there. It is written beside the store and moved in whole, with its index last.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Variable
from pathkernel_core.network import Network
from pathkernel_core.order_parameter import head_scores
from pathkernel_datasets.draws import order_parameter_draws
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.labelling import coordinate, coordinates_along, labelled, padded_rows
from pathkernel_datasets.schema import POINT
from pathkernel_datasets.selection import NOT_COMPUTED, index_of
from pathkernel_datasets.store import check_store
from pathkernel_datasets.stored import StoredStudy, compute_result
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_trained.comparison import Agreement, compare_order_parameters
from pathkernel_trained.path_network import PathNetwork
from pathkernel_trained.results import Comparison
from pathkernel_trained.study_checkpoint import study_checkpoint, study_heads

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
        ("layer", "head"),
        "weight of the trained network's U on the paths through a head, largest 1",
    ),
)
_ABOUT = ("step", "validation_accuracy")  # what is told of the training, if the file does


def compare_study(
    store: str | os.PathLike, checkpoint: str | os.PathLike | None = None
) -> xr.Dataset:
    """Compare a study's order parameters with that of the network that its heads come from.

    Parameters
    ----------
    store : path
        Result store of a study that was run with the heads of a checkpoint. Its group
        ``comparison`` is written, in the place of an older one.
    checkpoint : path, optional
        The checkpoint. By default the file of heads that the study names; a relative path counts
        from the working directory or else from the store's folder.

    Returns
    -------
    Dataset
        See :func:`open_comparison`.

    Raises
    ------
    StoreError
        If the store is none or damaged, its heads are not those of a file, the checkpoint is
        another than that file, or the store's folder cannot be written.
    FileNotFoundError
        If there is no such checkpoint.
    ValueError
        If the file is damaged, or holds queries and keys only.
    """
    file = None if checkpoint is None else Path(checkpoint)
    compute_result(Comparison(file), store)
    return open_comparison(store)


def compared(study: StoredStudy, checkpoint: str | os.PathLike | None) -> xr.Dataset:
    """Compute a comparison; parameters and errors as for :func:`compare_study`."""
    file, held = study_checkpoint(study, checkpoint)
    named = study.identity["options"]["heads"] if checkpoint is None else checkpoint
    dataset = study.dataset
    network = Network(study_heads(dataset), widths=held.width)
    trained = held.order_parameter
    theory = dataset["order_parameter"].where(dataset["status"] != NOT_COMPUTED)
    theory = theory.transpose(*POINT, *_MATRIX).values
    sampled = sampled_means(study)
    agreement = compare_order_parameters(network, np.stack([theory, sampled]), trained)
    values = {
        "order_parameter_trained": trained,
        "order_parameter_sampled": sampled,
        "agreement": agreement.values,
        "p_value": agreement.p_values,
        "head_score_trained": padded_rows(head_scores(network, trained)),
    }
    return labelled(
        values,
        _VARIABLES,
        _coordinates(dataset, agreement),
        {
            "checkpoint": str(named),
            "checkpoint_sha256": heads_digest(file),
            **_attributes(held, agreement),
        },
    )


def open_comparison(store: str | os.PathLike) -> xr.Dataset:
    """Comparison that a study's store holds.

    Returns
    -------
    Dataset
        ``order_parameter_trained(path, path_dual)``, at the scale of the theory's weights;
        ``order_parameter_sampled(seed, temperature, width, path, path_dual)``, the posterior mean,
        NaN where there are no draws; ``agreement`` and ``p_value(source, seed, temperature, width,
        statistic)``, source theory or sampled, see
        :class:`pathkernel_trained.comparison.Agreement`; ``head_score_trained(layer, head)``.

    Raises
    ------
    StoreError
        If the store is none, or holds no comparison.
    """
    store = Path(store)
    check_store(store)
    if not (store / Comparison.name / "zarr.json").exists():
        raise StoreError(f"{store} holds no comparison; make one with: pathkernel compare {store}")
    return xr.open_zarr(store, group=Comparison.name, chunks=None, consolidated=False)


def sampled_means(stored: StoredStudy) -> np.ndarray:
    """Posterior means of U from the draws that a store holds.

    Returns
    -------
    array, shape (seed, temperature, width, n, n)
        NaN where there are no draws.
    """
    study = stored.dataset
    means = np.full([study.sizes[name] for name in (*POINT, *_MATRIX)], np.nan)
    paths = {name: study[name].values for name in _MATRIX}
    for at, draws in order_parameter_draws(stored).items():
        place = tuple(index_of(study, name, getattr(at, name)) for name in POINT)
        means[place] = draws.mean(("chain", "draw")).sel(paths).transpose(*_MATRIX).values
    return means


def _coordinates(study: xr.Dataset, agreement: Agreement) -> dict[str, xr.Variable]:
    dims = {dim for variable in _VARIABLES for dim in variable.dims}
    statistics = agreement.statistics
    return coordinates_along(study, dims) | {
        "source": coordinate(
            "source",
            ("theory", "sampled"),
            "where the order parameter comes from that is compared with the trained one",
        ),
        "statistic": coordinate(
            "statistic",
            [statistic.name for statistic in statistics],
            "how the agreement is measured",
        ),
        "meaning": coordinate(
            "statistic",
            [statistic.long_name for statistic in statistics],
            "the statistic in words",
        ),
    }


def _attributes(held: PathNetwork, agreement: Agreement) -> dict[str, Any]:
    every = "all" if agreement.exact else "drawn at random"
    known = {name: held.about[name] for name in _ABOUT if name in held.about}
    return {
        "trained_width": held.width,
        "relabellings": agreement.relabellings,
        "relabellings_are": every,
        **{f"trained_{name}": value for name, value in known.items()},
    }
