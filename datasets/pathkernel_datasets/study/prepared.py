"""The data of a study at one seed along its network's attention paths, in its array library."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import Array, array_namespace, to_host
from pathkernel_core.contracts.hooks import UnknownNameError, unknown_name
from pathkernel_core.contracts.task import Blocks, Examples, Realisation
from pathkernel_core.energy.costs import Sizes, minimisation_bytes
from pathkernel_core.energy.kernel_features import KernelFeatures
from pathkernel_core.energy.likelihoods import LIKELIHOODS
from pathkernel_core.energy.path_kernels import path_kernels
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.contraction import attentioned_inputs
from pathkernel_core.paths.layers import Layer
from pathkernel_core.paths.network import Network, Skips
from pathkernel_core.system.errors import PathkernelError
from pathkernel_core.system.memory import check_memory
from pathkernel_datasets.errors import StudyError, TaskError
from pathkernel_datasets.study.study import Study, draw_blocks, draw_realisation

EXTRAS = {"numpy": "", "jax": "jax", "torch": "torch", "cupy": "cupy-cuda12x"}
"""Name of each library and the extra of pathkernel that installs it."""

DTYPES = ("float64", "float32")


class MissingLibraryError(PathkernelError, ImportError):
    """An array library is not installed."""


@dataclass(frozen=True)
class ArrayLibrary:
    """A device, in the words of an array library, and a function that puts NumPy arrays on it."""

    device: str
    asarray: Callable[[np.ndarray], Any]


def array_library(name: str, dtype: str = "float64") -> ArrayLibrary:
    """Load an array library; PyTorch, JAX and CuPy use a GPU where they find one.

    Raises
    ------
    UnknownNameError
        If the name or dtype is unknown, with the nearest known one.
    MissingLibraryError
        If the library is not installed, with the command that installs it.
    """
    for option, value, names in (("backend", name, EXTRAS), ("dtype", dtype, DTYPES)):
        if value not in names:
            raise UnknownNameError(unknown_name(option, value, names))
    try:
        module = importlib.import_module({"jax": "jax.numpy"}.get(name, name))
    except ImportError as error:
        raise MissingLibraryError(
            f"the backend {name!r} needs a library that is not installed ({error}); install it "
            f'with: pip install "pathkernel[{EXTRAS[name]}]"'
            + (" (or cupy-cuda13x, for CUDA 13)" if name == "cupy" else "")
        ) from None
    asarray = partial(module.asarray, dtype=getattr(module, dtype))
    device = "cpu"
    if name == "torch":
        device = "cuda" if module.cuda.is_available() else "cpu"
        asarray = partial(asarray, device=device)
    elif name == "jax":
        device = str(importlib.import_module("jax").devices()[0])
    elif name == "cupy":
        properties = module.cuda.runtime.getDeviceProperties(module.cuda.Device().id)
        device = properties["name"].decode()
    return ArrayLibrary(device, asarray)


@dataclass(frozen=True)
class PreparedData:
    """A realisation of a task, its examples replaced by attentioned inputs and labels.

    Attributes
    ----------
    network : Network
        At the largest width of the study.
    xi : array, shape (P, n, N_0)
        Attentioned inputs of the training examples (Eq. 7), unscaled; of some if there are blocks.
        With a kernel of tokens, their :class:`KernelFeatures`, of which N_0 is the number.
    labels : array, shape (P,) or (P, C)
        With one output a vector; less the offset.
    test_sets, validation
        (xi, labels) of each, with labels as the task gives them.
    offset : array, shape () or (C,)
        Mean of the training targets if they are centred, else 0; added to every prediction.
    blocks : Blocks or None
        Batches of all training examples, where they are too many to hold.
    scale : float
        Factor of the attentioned inputs.
    likelihood : str
        What the labels are to the theory, as for :class:`pathkernel_core.Problem`.
    """

    realisation: Realisation
    network: Network
    xi: Array
    labels: Array
    test_sets: Mapping[str, tuple[Array, Array]]
    validation: tuple[Array, Array] | None = None
    offset: np.ndarray | float = 0.0
    blocks: Blocks | None = None
    scale: float = 1.0
    likelihood: str = "squared"

    @property
    def has_probabilities(self) -> bool:
        """Whether the labels are classes with probabilities."""
        return not LIKELIHOODS[self.likelihood].is_gaussian

    @property
    def scoring(self) -> str:
        """Kind of the measures that the data have."""
        return "probabilities" if self.has_probabilities else str(self.realisation.kind)

    @property
    def class_names(self) -> Sequence[Any]:
        """Names of the classes, in the order of their probabilities."""
        if self.likelihood == "logistic":
            return (-1, 1)
        names = self.realisation.output_names
        return range(self.realisation.outputs) if names is None else names

    def problem(self) -> Problem:
        """Training examples as the theory takes them, all in memory."""
        labels = self.labels
        if self.likelihood == "softmax":  # a single 1 among 0, for which tasks may have −1
            labels = array_namespace(labels=labels).where(labels > 0, labels, 0 * labels)
        return Problem(self.xi, labels, likelihood=self.likelihood)

    @property
    def n_examples(self) -> int:
        """Number of all training examples."""
        return self.xi.shape[0] if self.blocks is None else self.blocks.examples

    @property
    def n_blocks(self) -> int:
        """Number of blocks of the training examples; 0 where all are in memory."""
        return 0 if self.blocks is None else len(self.blocks)

    def block(self, number: int, library: ArrayLibrary) -> tuple[Array, Array]:
        """Attentioned inputs and labels of a block of the training examples, drawn again."""
        assert self.blocks is not None
        block = self.blocks.draw(number)
        features = _AlongPaths(self.realisation, self.network.skips, library, self.scale)
        return features.label_inputs(block, self.offset)


def prepare_data(
    study: Study,
    seed: int,
    library: ArrayLibrary,
    realisation: Realisation | None = None,
    *,
    training_only: bool = False,
) -> PreparedData:
    """Draw a study's data and heads, and contract them along the paths.

    The arrays are those of the library; a realisation that is drawn already is not drawn again.
    Test and validation examples are left out if ``training_only``.

    Raises
    ------
    TooLargeError
        If the examples along all paths, or the minimisation, would not fit into memory.
    StudyError
        If the labels are not those of the study's likelihood.
    """
    realisation = draw_realisation(study.task, seed) if realisation is None else realisation
    blocks = draw_blocks(study.task, seed)
    if study.has_probabilities:
        _check_classes(study.likelihood, realisation, blocks)
    heads, outputs = realisation.heads, realisation.outputs
    variances = study.variances if study.variance is None else study.variance
    if isinstance(variances, tuple) and len(variances) != len(heads) + 2:
        several = ",".join(map("{:g}".format, variances))
        raise ValueError(
            f"variances must be one number or {len(heads) + 2} numbers (of the projection, each "
            f"layer and the readout), but has {len(variances)}; several values of one "
            f"prior variance of all weights are variance, on the command line --variance {several}"
        )
    network = Network(heads, max(study.widths), variances, outputs, study.skips)
    kernel = study.token_kernel or "linear"
    size = realisation.train.inputs.shape[2]
    if kernel != "linear":
        _check_tokens(kernel, realisation, blocks)
        size = network.n_paths * (len(realisation.train.inputs) + 1)
    # before the inputs are contracted, which makes n·N_0 numbers out of each example
    _check_size(
        realisation, size, network.n_paths, blocks, min(study.widths), study.has_probabilities
    )
    offset: np.ndarray | float = 0.0
    if realisation.centred:
        offset = _label_mean(study.task.name, realisation, blocks)
    scale = study.input_scale or 1.0
    along_paths = _AlongPaths(realisation, network.skips, library, scale)
    if kernel != "linear":
        along_paths = _AlongKernels(realisation, network.skips, library, scale, kernel)
    xi, labels = along_paths.label_inputs(realisation.train, offset)
    tests, validation = {}, None
    if not training_only:
        tests = {
            name: along_paths.label_inputs(examples)
            for name, examples in realisation.test_sets.items()
        }
        if realisation.validation is not None:
            validation = along_paths.label_inputs(realisation.validation)
    settings = (offset, blocks, scale, study.likelihood)
    return PreparedData(realisation, network, xi, labels, tests, validation, *settings)


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


@dataclass(frozen=True, eq=False)
class _AlongPaths:
    """Examples of a realisation along the paths."""

    realisation: Realisation
    skips: Skips
    library: ArrayLibrary
    scale: float

    def label_inputs(
        self, examples: Examples, offset: np.ndarray | float = 0.0
    ) -> tuple[Array, Array]:
        """Attentioned inputs, and labels less an offset."""
        xi = self.features(examples)
        # of the attentioned inputs, not of the tokens: attention is that of the tokens as they are
        if self.scale != 1:
            xi = self.scale * xi
        labels = to_host(examples.labels)
        if labels.ndim == 2 and labels.shape[1] == 1:  # one output: the predictor is a vector
            labels = labels[:, 0]
        return xi, self.library.asarray(labels - offset)

    def features(self, examples: Examples) -> Array:
        """Attentioned inputs."""
        return attentioned_inputs(*self.sequences(examples), **self.settings)

    def sequences(self, examples: Examples) -> tuple[Array, list[Layer]]:
        """Tokens, and the attention on them."""
        asarray = self.library.asarray
        layers = [layer.convert(asarray) for layer in self.realisation.layers_of(examples)]
        return asarray(examples.inputs), layers

    @property
    def settings(self) -> dict[str, Any]:
        """Readout and skip connections."""
        return {"readout": self.realisation.readout, "skips": self.skips}


@dataclass(frozen=True, eq=False)
class _AlongKernels(_AlongPaths):
    """Examples of a realisation along the paths, as features with the kernels of tokens.

    Features, so that all that takes attentioned inputs takes other kernels, too.
    """

    kernel: Any

    def features(self, examples: Examples) -> Array:
        """Features in place of attentioned inputs."""
        if examples is self.realisation.train:
            return self.library.asarray(self.training.training)
        new, new_layers = self.sequences(examples)
        moments = self.kernels(new=new, new_layers=new_layers)
        return self.library.asarray(self.training.new(*map(to_host, moments)))

    @cached_property
    def training(self) -> KernelFeatures:
        """Features of the training examples."""
        return KernelFeatures(to_host(self.kernels()))

    def kernels(self, **new: Any) -> Any:
        """Kernels of the training examples, or those with new ones."""
        inputs, layers = self.sequences(self.realisation.train)
        return path_kernels(inputs, layers, self.kernel, **(self.settings | new))


def _check_classes(likelihood: str, realisation: Realisation, blocks: Blocks | None) -> None:
    """Check that the labels of a task are those of a likelihood of classes."""
    if realisation.kind != "classes":
        raise StudyError(
            f"the {likelihood} likelihood needs classes, but the labels of the task are real "
            "targets; leave --likelihood out, or make them classes (--kind classes)"
        )
    outputs = realisation.outputs
    fitting = "logistic" if outputs == 1 else "softmax"
    if likelihood != fitting:
        classes = "two classes in one output" if outputs == 1 else f"{outputs} classes"
        raise StudyError(
            f"the task has {classes}, which is no case of the {likelihood} likelihood; take "
            f"--likelihood {fitting}"
        )
    if blocks is not None:
        raise StudyError(
            f"the {likelihood} likelihood needs all training examples at once, but "
            f"{blocks.examples} come in blocks; take fewer, or leave --likelihood out"
        )


def _check_tokens(kernel: str, realisation: Realisation, blocks: Blocks | None) -> None:
    """Check that kernels of the tokens can be computed."""
    if any(getattr(layer, "tokens_are_paths", False) for layer in realisation.layers):
        raise StudyError(
            f"the token kernel {kernel} needs tokens, but the inputs are attentioned already; "
            "leave --token-kernel out, or give tokens and their attention"
        )
    if blocks is not None:
        raise StudyError(
            f"the token kernel {kernel} needs all training examples at once, but {blocks.examples} "
            "come in blocks; take fewer, or leave --token-kernel out"
        )


def _check_size(
    realisation: Realisation,
    size: int,
    paths: int,
    blocks: Blocks | None,
    width: float,
    classes: bool,
) -> None:
    """Check that examples of ``size`` numbers along every path fit into memory."""
    train, tests = realisation.train.inputs, realisation.test_sets.values()
    sets = [realisation.train, *tests, *filter(None, [realisation.validation])]
    examples = sum(len(one_set.inputs) for one_set in sets)
    data, remedy = 8 * examples * paths * size, "take fewer examples, heads or layers"
    check_memory(f"{examples} examples of width {size} along {paths} paths", data, remedy)
    number, form = (len(train), None) if blocks is None else (blocks.examples, "features")
    sizes = Sizes(number, paths, size, realisation.outputs, classes=classes)
    check_memory(
        f"the minimisation over {paths} paths and {realisation.outputs} outputs, with "
        f"{examples} examples along them,",
        data + minimisation_bytes(sizes, width, form),
        remedy,
    )
