"""The data of a study at one seed, seen along the attention paths of its network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pathkernel_core.attention import attentioned_inputs
from pathkernel_core.backend import Array, to_host
from pathkernel_core.costs import Sizes, minimisation_bytes, minimisation_seconds
from pathkernel_core.network import Network, Skips
from pathkernel_core.task import Blocks, Examples, Realisation
from pathkernel_datasets.array_libraries import ArrayLibrary
from pathkernel_datasets.errors import TaskError
from pathkernel_datasets.memory import check_memory
from pathkernel_datasets.study import Study, draw, draw_blocks


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
        block, skips = self.blocks.draw(number), self.network.skips
        return _along_paths(block, self.realisation, skips, library, offset)


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
        If the examples along all paths, or the minimisation, would not fit into memory.
    """
    realisation, blocks = draw(study.task, seed), draw_blocks(study.task, seed)
    shape = (realisation.heads, max(study.widths), study.variances, realisation.outputs)
    network = Network(*shape, study.skips)
    _check_size(realisation, network.n_paths, blocks, min(study.widths))
    offset = None
    if realisation.centred:
        offset = _label_mean(study.task.name, realisation, blocks)

    def along_paths(examples: Examples, offset: np.ndarray | None = None) -> tuple[Array, Array]:
        return _along_paths(examples, realisation, network.skips, library, offset)

    xi, labels = along_paths(realisation.train, offset)
    shift = 0.0 if offset is None else offset
    if training_only:
        return PreparedData(realisation, network, xi, labels, {}, None, shift, blocks)
    tests = {name: along_paths(examples) for name, examples in realisation.test_sets.items()}
    held_out = realisation.validation
    validation = None if held_out is None else along_paths(held_out)
    return PreparedData(realisation, network, xi, labels, tests, validation, shift, blocks)


def _label_mean(task: str, realisation: Realisation, blocks: Blocks | None) -> np.ndarray:
    """Mean of all training targets, shape () for one output."""
    if blocks is None:
        mean = to_host(realisation.train.labels).astype(float).mean(axis=0)
    elif blocks.label_mean is None:
        raise TaskError(
            f"the task {task!r} is centred and draws blocks, which must give their label_mean"
        )
    else:
        mean = np.asarray(to_host(blocks.label_mean), dtype=float)
    return mean.reshape(()) if realisation.outputs == 1 else mean


def _along_paths(
    examples: Examples,
    realisation: Realisation,
    skips: Skips,
    library: ArrayLibrary,
    offset: np.ndarray | float | None,
) -> tuple[Array, Array]:
    """Attentioned inputs and labels, these less an offset if there is one."""
    inputs = library.asarray(examples.inputs)
    layers = [layer.convert(library.asarray) for layer in realisation.layers_of(examples)]
    xi = attentioned_inputs(inputs, layers, realisation.readout, skips=skips)
    labels = examples.labels
    if labels.ndim == 2 and labels.shape[1] == 1:  # one output: the predictor is a vector
        labels = labels[:, 0]
    if offset is not None:
        labels = to_host(labels) - offset
    return xi, library.asarray(labels)


def expected_seconds(data: PreparedData, widths: Sequence[float]) -> float:
    """Seconds that minimisations at these widths take on one core, by the sizes of the data."""
    _, paths, inputs = data.xi.shape
    sizes = Sizes(data.n_examples, paths, inputs, data.network.outputs)
    form = None if data.blocks is None else "features"
    return sum(minimisation_seconds(sizes, width, form) for width in widths)


def _check_size(realisation: Realisation, paths: int, blocks: Blocks | None, width: float) -> None:
    sets = [realisation.train, *realisation.test_sets.values()]
    sets += [] if realisation.validation is None else [realisation.validation]
    train = realisation.train.inputs
    examples = sum(examples.inputs.shape[0] for examples in sets)
    data = 8 * examples * paths * train.shape[2]
    check_memory(
        f"{examples} examples of width {train.shape[2]} along {paths} paths",
        data,
        "take fewer examples, heads or layers",
    )
    number, form = (train.shape[0], None) if blocks is None else (blocks.examples, "features")
    sizes = Sizes(number, paths, train.shape[2], realisation.outputs)
    check_memory(
        f"the minimisation over {paths} paths and {realisation.outputs} outputs, with "
        f"{examples} examples along them,",
        data + minimisation_bytes(sizes, width, form),
        "take fewer examples, heads or layers",
    )
