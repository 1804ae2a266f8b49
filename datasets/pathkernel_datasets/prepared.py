"""The data of a study at one seed, seen along the attention paths of its network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pathkernel_core.attention import attentioned_inputs
from pathkernel_core.backend import Array, to_host
from pathkernel_core.network import Network
from pathkernel_core.task import Examples, Realisation
from pathkernel_datasets.array_libraries import ArrayLibrary
from pathkernel_datasets.memory import check_memory
from pathkernel_datasets.study import Study, draw

_COPIES = 5  # of the order parameter, at least, while the action is minimised


@dataclass(frozen=True)
class PreparedData:
    """A realisation of a task, its examples replaced by attentioned inputs.

    Attributes
    ----------
    realisation : Realisation
    network : Network
        At the largest width of the study.
    xi : array, shape (P, n, N_0)
        Attentioned inputs of the training examples (Eq. 7), unscaled.
    labels : array, shape (P,) or (P, C)
        With one output a vector; less the offset.
    test_sets : mapping of str to (xi, labels)
        Labels as the task gives them.
    validation : (xi, labels) or None
        Of the validation examples, if the task has any.
    offset : array, shape () or (C,)
        Mean of the training targets, which every prediction takes on top, if they are centred; else
        0.
    """

    realisation: Realisation
    network: Network
    xi: Array
    labels: Array
    test_sets: Mapping[str, tuple[Array, Array]]
    validation: tuple[Array, Array] | None = None
    offset: np.ndarray | float = 0.0


def prepare_data(
    study: Study, seed: int, library: ArrayLibrary, *, training_only: bool = False
) -> PreparedData:
    """Draw a study's data and heads, and contract them along the paths.

    Parameters
    ----------
    study : Study
    seed : int
        Seed of data and heads.
    library : ArrayLibrary
        Of the arrays that come out.
    training_only : bool
        Leave test and validation examples out.

    Raises
    ------
    TooLargeError
        If the examples along all paths, or the order parameter, would not fit into memory.
    """
    realisation = draw(study.task, seed)
    _check_size(realisation)

    def along_paths(examples: Examples, centred: bool = False) -> tuple[Array, Array]:
        inputs = library.asarray(examples.inputs)
        layers = [layer.convert(library.asarray) for layer in realisation.layers_of(examples)]
        xi = attentioned_inputs(inputs, layers, realisation.readout)
        labels = examples.labels
        if labels.ndim == 2 and labels.shape[1] == 1:  # one output: the predictor is a vector
            labels = labels[:, 0]
        if centred:
            labels = to_host(labels) - offset
        return xi, library.asarray(labels)

    offset = 0.0
    if realisation.centred:
        offset = to_host(realisation.train.labels).astype(float).mean(axis=0)
        if realisation.outputs == 1:
            offset = offset.reshape(())
    xi, labels = along_paths(realisation.train, realisation.centred)
    network = Network(realisation.heads, max(study.widths), study.variances, realisation.outputs)
    if training_only:
        return PreparedData(realisation, network, xi, labels, {}, None, offset)
    tests = {name: along_paths(examples) for name, examples in realisation.test_sets.items()}
    held_out = realisation.validation
    validation = None if held_out is None else along_paths(held_out)
    return PreparedData(realisation, network, xi, labels, tests, validation, offset)


def _check_size(realisation: Realisation) -> None:
    sets = [realisation.train, *realisation.test_sets.values()]
    sets += [] if realisation.validation is None else [realisation.validation]
    paths, width = math.prod(realisation.heads), realisation.train.inputs.shape[2]
    examples = sum(examples.inputs.shape[0] for examples in sets)
    check_memory(
        f"{examples} examples of width {width} along {paths} paths",
        8 * examples * paths * width,
        "take fewer examples, heads or layers",
    )
    rows = paths * realisation.outputs
    check_memory(
        f"the order parameter of {paths} paths and {realisation.outputs} outputs, with its "
        "gradient and the steps of its minimisation",
        8 * _COPIES * rows**2,
        "take fewer heads or layers",
    )
