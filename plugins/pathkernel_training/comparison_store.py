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

from pathkernel_core.network import Network
from pathkernel_core.order_parameter import head_scores
from pathkernel_datasets.groups import add_group, sole_writer
from pathkernel_datasets.schema import POINT
from pathkernel_datasets.selection import NOT_COMPUTED
from pathkernel_datasets.store import StoreError, check_store, open_store
from pathkernel_sampling.drawn import order_parameter_draws
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_training.checkpoint import Checkpoint
from pathkernel_training.comparison import Agreement, compare_order_parameters
from pathkernel_training.empirical import empirical_order_parameter
from pathkernel_training.study_checkpoint import study_checkpoint, study_heads

GROUP = "comparison"

_MATRIX = ("path", "path_dual")
_GRID = ("source", *POINT, "statistic")
_VARIABLES = {  # name: (dimensions, long name)
    "order_parameter_trained": (_MATRIX, "order parameter U of the trained network"),
    "order_parameter_sampled": (
        (*POINT, *_MATRIX),
        "order parameter U, posterior mean of the draws in the store",
    ),
    "agreement": (_GRID, "agreement of the order parameter with that of the trained network"),
    "p_value": (_GRID, "fraction of relabellings of heads that agree at least as well"),
    "head_score_trained": (
        ("layer", "head"),
        "weight of the trained network's U on the paths through a head, largest 1",
    ),
}
_LABELS = {
    "source": "where the order parameter comes from that is compared with the trained one",
    "statistic": "how the agreement is measured",
    "meaning": "the statistic in words",
}
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
    store = Path(store)
    file, held = study_checkpoint(store, checkpoint)
    study = open_store(store)
    network = Network(study_heads(study), widths=held.shape.width)
    trained = empirical_order_parameter(held.weights)
    theory = study["order_parameter"].where(study["status"] != NOT_COMPUTED)
    theory = theory.transpose(*POINT, *_MATRIX).values
    sampled = sampled_means(store, study)
    agreement = compare_order_parameters(network, np.stack([theory, sampled]), trained)
    dataset = _labelled(study, network, trained, sampled, agreement)
    dataset.attrs = _attributes(file, held, agreement)
    with sole_writer(store):
        add_group(store, GROUP, dataset)
    return open_comparison(store)


def open_comparison(store: str | os.PathLike) -> xr.Dataset:
    """Comparison that a study's store holds.

    Returns
    -------
    Dataset
        ``order_parameter_trained(path, path_dual)``, at the scale of the theory's weights;
        ``order_parameter_sampled(seed, temperature, width, path, path_dual)``, the posterior mean,
        NaN where there are no draws; ``agreement`` and ``p_value(source, seed, temperature, width,
        statistic)``, source theory or sampled, see
        :class:`pathkernel_training.comparison.Agreement`; ``head_score_trained(layer, head)``.

    Raises
    ------
    StoreError
        If the store is none, or holds no comparison.
    """
    store = Path(store)
    check_store(store)
    if not (store / GROUP / "zarr.json").exists():
        raise StoreError(f"{store} holds no comparison; make one with: pathkernel compare {store}")
    return xr.open_zarr(store, group=GROUP, chunks=None, consolidated=False)


def sampled_means(store: Path, study: xr.Dataset) -> np.ndarray:
    """Posterior means of U from the draws that a store holds.

    Parameters
    ----------
    store : Path
    study : Dataset

    Returns
    -------
    array, shape (seed, temperature, width, n, n)
        NaN where there are no draws.
    """
    means = np.full([study.sizes[name] for name in (*POINT, *_MATRIX)], np.nan)
    paths = {name: study[name].values for name in _MATRIX}
    for at, draws in order_parameter_draws(store).items():
        place = tuple(_place(study, name, getattr(at, name)) for name in POINT)
        means[place] = draws.mean(("chain", "draw")).sel(paths).transpose(*_MATRIX).values
    return means


def _place(study: xr.Dataset, name: str, value: float) -> int:
    return int(np.flatnonzero(np.isclose(study[name].values, value, rtol=1e-9, atol=0))[0])


def _labelled(
    study: xr.Dataset,
    network: Network,
    trained: np.ndarray,
    sampled: np.ndarray,
    agreement: Agreement,
) -> xr.Dataset:
    values = {
        "order_parameter_trained": trained,
        "order_parameter_sampled": sampled,
        "agreement": agreement.values,
        "p_value": agreement.p_values,
        "head_score_trained": np.stack(head_scores(network, trained)),
    }
    labels = {
        "source": ("source", ("theory", "sampled")),
        "statistic": ("statistic", [statistic.name for statistic in agreement.statistics]),
        "meaning": ("statistic", [statistic.long_name for statistic in agreement.statistics]),
    }
    text = np.dtypes.StringDType()
    dims = {dim for dims, _ in _VARIABLES.values() for dim in dims}
    return xr.Dataset(
        {
            name: (dims, values[name], {"long_name": long_name, "units": "1"})
            for name, (dims, long_name) in _VARIABLES.items()
        },
        {
            name: study[name].variable
            for name in study.coords
            if study[name].dims and set(study[name].dims) <= dims
        }
        | {
            name: (dim, np.array(words, dtype=text), {"long_name": _LABELS[name]})
            for name, (dim, words) in labels.items()
        },
    )


def _attributes(file: Path, held: Checkpoint, agreement: Agreement) -> dict[str, Any]:
    every = "all" if agreement.exact else "drawn at random"
    known = {name: held.about[name] for name in _ABOUT if name in held.about}
    return {
        "checkpoint": str(file),
        "checkpoint_sha256": heads_digest(file),
        "trained_width": held.shape.width,
        "relabellings": agreement.relabellings,
        "relabellings_are": every,
        **{f"trained_{name}": value for name, value in known.items()},
    }
