"""The data of a study at one seed, seen along the attention paths of its network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pathkernel_core.attention import attentioned_inputs
from pathkernel_core.backend import Array, to_host
from pathkernel_core.network import Network
from pathkernel_core.task import Blocks, Examples, Realisation
from pathkernel_datasets.array_libraries import ArrayLibrary
from pathkernel_datasets.memory import check_memory
from pathkernel_datasets.study import Study, draw, draw_blocks

_COPIES = 5  # of the order parameter, and of the Gram matrix, while the action is minimised


@dataclass(frozen=True)
class PreparedData:
    """A realisation of a task, its examples replaced by attentioned inputs.

    Attributes
    ----------
    realisation : Realisation
    network : Network
        At the largest width of the study.
    xi : array, shape (P, n, N_0)
        Attentioned inputs of the training examples (Eq. 7), unscaled; of some if there are blocks.
    labels : array, shape (P,) or (P, C)
        With one output a vector; less the offset.
    test_sets : mapping of str to (xi, labels)
        Labels as the task gives them.
    validation : (xi, labels) or None
        Of the validation examples, if the task has any.
    offset : array, shape () or (C,)
        Mean of the training targets, which every prediction takes on top, if they are centred; else
        0.
    blocks : Blocks or None
        Of all training examples, where they are too many to hold.
    """

    realisation: Realisation
    network: Network
    xi: Array
    labels: Array
    test_sets: Mapping[str, tuple[Array, Array]]
    validation: tuple[Array, Array] | None = None
    offset: np.ndarray | float = 0.0
    blocks: Blocks | None = None

    @property
    def n_examples(self) -> int:
        """Number of all training examples."""
        return self.xi.shape[0] if self.blocks is None else self.blocks.examples

    @property
    def n_blocks(self) -> int:
        """Number of blocks of the training examples; none where all are held."""
        return 0 if self.blocks is None else len(self.blocks)

    def block(self, number: int, library: ArrayLibrary) -> tuple[Array, Array]:
        """Attentioned inputs and labels of a block of the training examples, drawn anew."""
        if self.blocks is None:
            raise ValueError(f"block {number} is asked for, but all training examples are held")
        offset = self.offset if self.realisation.centred else None
        return _along_paths(self.blocks.draw(number), self.realisation, library, offset)


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
    realisation, blocks = draw(study.task, seed), draw_blocks(study.task, seed)
    _check_size(realisation, blocks)
    offset = None
    if realisation.centred:
        offset = _label_mean(realisation, blocks)

    def along_paths(examples: Examples, offset: np.ndarray | None = None) -> tuple[Array, Array]:
        return _along_paths(examples, realisation, library, offset)

    xi, labels = along_paths(realisation.train, offset)
    network = Network(realisation.heads, max(study.widths), study.variances, realisation.outputs)
    shift = 0.0 if offset is None else offset
    if training_only:
        return PreparedData(realisation, network, xi, labels, {}, None, shift, blocks)
    tests = {name: along_paths(examples) for name, examples in realisation.test_sets.items()}
    held_out = realisation.validation
    validation = None if held_out is None else along_paths(held_out)
    return PreparedData(realisation, network, xi, labels, tests, validation, shift, blocks)


def _label_mean(realisation: Realisation, blocks: Blocks | None) -> np.ndarray:
    """Mean of all training targets, shape () for one output."""
    if blocks is None:
        mean = to_host(realisation.train.labels).astype(float).mean(axis=0)
    elif blocks.label_mean is None:
        raise ValueError("blocks of a realisation that is centred must give their label_mean")
    else:
        mean = np.asarray(to_host(blocks.label_mean), dtype=float)
    return mean.reshape(()) if realisation.outputs == 1 else mean


def _along_paths(
    examples: Examples,
    realisation: Realisation,
    library: ArrayLibrary,
    offset: np.ndarray | float | None,
) -> tuple[Array, Array]:
    """Attentioned inputs and labels, these less an offset if there is one."""
    inputs = library.asarray(examples.inputs)
    layers = [layer.convert(library.asarray) for layer in realisation.layers_of(examples)]
    xi = attentioned_inputs(inputs, layers, realisation.readout)
    labels = examples.labels
    if labels.ndim == 2 and labels.shape[1] == 1:  # one output: the predictor is a vector
        labels = labels[:, 0]
    if offset is not None:
        labels = to_host(labels) - offset
    return xi, library.asarray(labels)


def _check_size(realisation: Realisation, blocks: Blocks | None) -> None:
    sets = [realisation.train, *realisation.test_sets.values()]
    sets += [] if realisation.validation is None else [realisation.validation]
    paths, width = math.prod(realisation.heads), realisation.train.inputs.shape[2]
    examples = sum(examples.inputs.shape[0] for examples in sets)
    check_memory(
        f"{examples} examples of width {width} along {paths} paths",
        8 * examples * paths * width,
        "take fewer examples, heads or layers",
    )
    if blocks is not None:
        check_memory(
            f"sums over examples of width {width} along {paths} paths",
            8 * _COPIES * (paths * width) ** 2,
            "take fewer heads or layers",
        )
    rows = paths * realisation.outputs
    check_memory(
        f"the order parameter of {paths} paths and {realisation.outputs} outputs, with its "
        "gradient and the steps of its minimisation",
        8 * _COPIES * rows**2,
        "take fewer heads or layers",
    )
