"""The theory on token sequences, labels and heads of one's own."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pathkernel_core.arrays.backend import Array
from pathkernel_core.contracts.task import KINDS, Blocks, Examples, Realisation, Task, option
from pathkernel_core.paths.layers import Layer, QueryKey
from pathkernel_core.system.text import printable
from pathkernel_tasks import heads_file
from pathkernel_tasks.along_paths import layers_along
from pathkernel_tasks.array_files import content_digest
from pathkernel_tasks.array_guards import check_suffix
from pathkernel_tasks.custom_data import HELD, SUFFIXES, CustomData, read_data, split_examples
from pathkernel_tasks.saved_arrays import name_arrays, save_arrays

_BLOCK = 2000  # largest number of training examples of a block
_BLOCK_ELEMENTS = 2**23  # of its tokens and attention matrices, 64 MiB
_SHOWN = 1000  # number of training examples that analyses see, where they come in blocks

_CAPTURED = (
    "attentioned inputs from a file: what the model that they are of has besides its attention is "
    "left out"
)
_MATRICES = (
    "attention matrices from a file: where the model that they are of attends to hidden states and "
    "not to the bare tokens, they hold that, and its nonlinear blocks and normalisation are left "
    "out, and its skip connections but for those of --skips"
)


@dataclass(frozen=True)
class Custom(Task):
    """Predictions on your own data, with your own heads.

    The data file (.npz, .safetensors or .zarr) holds inputs (P, M, N_0), labels (P,), test_inputs
    and test_labels. Attention comes from a heads file of queries and keys, or as matrices
    attention.1, attention.2, ... (P, H, M, M) of any model in the data file. If the data file holds
    paths (L,), the numbers of heads, inputs (P, n, N_0) are attentioned inputs already.
    """

    name: ClassVar[str] = "custom"
    summary: ClassVar[str] = "Take token sequences, labels and heads from files"
    temperatures: ClassVar[tuple[float, ...]] = (0.01, 0.1, 1.0)

    inputs: str = option(None, "Data file: .npz, .safetensors or .zarr.")
    heads: str = option(
        None, "Heads file, with queries and keys, unless the data file holds attention matrices."
    )
    labels: str = option(None, "File of labels, if the data file holds none.")
    kind: str = option(
        None,
        "Kind of the labels: classes, or real targets.  [default: targets if they are "
        "floating-point numbers; classes if they are integers or text]",
        choices=KINDS,
    )
    centred: bool = option(
        False, "Subtract the mean of the training targets, and add it to predictions again."
    )
    test_fraction: float = option(
        0.0,
        "Fraction of the examples to test on, drawn by the seed, if there are no test sets.",
        minimum=0,
        below=1,
    )
    readout: str | int = option(
        "last",
        "Token read out, by its index (from 0; heads count from 1), or their mean.",
        choices=("first", "last", "mean"),
        type=int,
    )
    key_axis: str = option(
        "first",
        "Axis of the key tokens among the last two axes of attention matrices.",
        choices=("first", "last"),
    )
    constant: bool = option(False, "Append a constant 1 to every token, for heads with biases.")
    approximation: str = option(
        None,
        "Sentence on how the model departs from the theory's network; empty if it does not.  "
        "[default: the sentence of the heads file]",
    )

    def __post_init__(self):
        if self.inputs is None:
            raise ValueError(
                "inputs must name a data file, with arrays inputs (P, M, N_0) and labels (P,)"
            )
        check_suffix(self.inputs, "data file", SUFFIXES)
        if self.labels is not None:
            check_suffix(self.labels, "labels file", SUFFIXES)
        if self.heads is not None:
            heads_file.check_heads_suffix(self.heads)
        if self.heads is not None and self.key_axis != "first":
            raise ValueError("key_axis is an option of attention matrices; leave it out with heads")

    @classmethod
    def from_arrays(
        cls,
        inputs: Array,
        labels: Array,
        heads: Sequence[QueryKey] | str | os.PathLike | None = None,
        *,
        test_inputs: Array | Mapping[str, Array] | None = None,
        test_labels: Array | Mapping[str, Array] | None = None,
        attention: Sequence[Array] | None = None,
        test_attention: Sequence[Array] | Mapping[str, Sequence[Array]] | None = None,
        paths: Sequence[int] | None = None,
        folder: str | os.PathLike | None = None,
        **options: Any,
    ) -> Custom:
        """Make a task of arrays in memory, of any array library.

        They are saved in files named for their content, so that a study can read them again.

        Parameters
        ----------
        inputs : array, shape (P, M, N_0)
            Token sequences.
        labels : array, shape (P,) or (P, C)
            Real targets, or classes as integers or text.
        heads : sequence of QueryKey, or path
            The first layer first, or a heads file; left out if there is attention.
        test_inputs, test_labels : array, or mapping of str to array
            A test set, or several by name; left out with ``test_fraction``.
        attention : sequence of L arrays, shape (P, H, M, M)
            Attention matrices of each layer instead of heads.
        test_attention : the same for the test set, or a mapping of such
        paths : sequence of L int
            Numbers of heads of each layer, if inputs (P, n, N_0) are attentioned already, such as
            :func:`pathkernel_core.attentioned_inputs` returns them.
        folder : path, optional
            Folder of the files; by default in the user's cache folder.
        **options
            Other options of the task, such as ``readout`` or ``test_fraction``.

        Raises
        ------
        ValueError, TypeError
            If an array does not fit or holds objects, or heads are no queries and keys.
        """
        arrays = {
            **name_arrays("inputs", inputs),
            **name_arrays("labels", labels),
            **name_arrays("attention", attention, layers=True),
            **name_arrays("paths", None if paths is None else np.array(paths)),
            **name_arrays("test_inputs", test_inputs),
            **name_arrays("test_labels", test_labels),
            **name_arrays("test_attention", test_attention, layers=True),
        }
        in_file = isinstance(heads, (str, os.PathLike))
        data, heads_path = save_arrays(arrays, None if in_file else heads, folder)
        task = cls(inputs=data, heads=heads if in_file else heads_path, **options)
        task.realise(0)  # arrays that do not fit are refused early
        return task

    def _mean_note(self, labels: np.ndarray, kind: str) -> str:
        """Note on the mean of the targets."""
        if self.centred:
            return "; centred, and predictions moved back"
        if kind == "targets" and (abs(labels.mean(axis=0)) > labels.std(axis=0)).any():
            return (
                "; their mean is further from 0 than they are from it, and the theory's prior has "
                "mean 0: take it off with centred (--centred)"
            )
        return ""

    def realise(self, seed: int) -> Realisation:
        """Read the files; the seed draws nothing but the split of the examples.

        Raises
        ------
        FileNotFoundError, ValueError
            If a file is missing, damaged or does not fit, or a seed other than 0 has nothing to
            draw.
        """
        data, train, _ = self._read(seed)
        layers, approximation, ignored = self._layers(train, data.paths)
        notes = {
            "approximation": approximation if self.approximation is None else self.approximation,
            "labels": data.labels.note + self._mean_note(data.train.labels, data.labels.kind),
            "files": "; ".join(filter(None, (data.note, ignored))),
        }
        return Realisation(
            layers=layers,
            readout="first" if data.paths else self.readout,
            train=train,
            test_sets={
                name: self._widen_labels(part.read()) for name, part in data.test_sets.items()
            },
            notes={name: sentence for name, sentence in notes.items() if sentence},
            kind=data.labels.kind,
            centred=self.centred,
            output_names=data.labels.names,
        )

    def blocks(self, seed: int) -> Blocks | None:
        """More than 10,000 training examples, and more than features, in blocks of at most 2,000.

        Arrays of a Zarr folder are read block by block.
        """
        return self._read(seed)[2]

    def _read(self, seed: int) -> tuple[CustomData, Examples, Blocks | None]:
        """Data; training examples, all or a sample; and all in blocks, if it is a sample."""
        data = read_data(self.inputs, self.labels, self.key_axis, self.kind)
        if self.centred and data.labels.kind != "targets":
            raise ValueError(
                f"centred is an option of targets, but the labels of {self.inputs!r} are classes; "
                "leave it out, or take numbers as targets with kind='targets' (--kind targets)"
            )
        if self.test_fraction:
            data = split_examples(data, self.test_fraction, seed)
        elif not data.test_sets:
            raise ValueError(
                f"data file {self.inputs!r} has no test_inputs; add them, or set a part of the "
                "examples aside with test_fraction (--test-fraction 0.25)"
            )
        elif seed:
            raise ValueError(
                f"seed {seed} would repeat seed 0: the data and their test sets are fixed, and the "
                "seed draws nothing but the split of test_fraction. Leave the seeds out"
            )
        examples, labels = data.train, data.train.labels
        count = len(labels)
        if count <= HELD:
            return data, self._widen_labels(examples.read()), None
        _, tokens, width = examples.inputs[1].shape
        shown = np.sort(np.random.default_rng(seed).choice(count, _SHOWN, replace=False))
        train = self._widen_labels(examples.read(shown))
        heads = [layer.n_heads for layer in self._layers(train, data.paths)[0]]
        if math.prod(heads) * train.inputs.shape[2] * labels[0].size >= count:
            return data, self._widen_labels(examples.read()), None
        matrices = 0 if train.layers is None else sum(heads) * tokens
        size = min(_BLOCK, max(1, _BLOCK_ELEMENTS // (tokens * (width + matrices))))

        def draw(number: int) -> Examples:
            rows = np.arange(number * size, min((number + 1) * size, count))
            return self._widen_labels(examples.read(rows))

        return data, train, Blocks(count, size, draw, labels.mean(axis=0))

    @property
    def label(self) -> str:
        """Name with the files' names, for titles."""
        files = [printable(Path(file).name) for file in (self.inputs, self.heads) if file]
        return ", ".join([self.name, *files])

    def provenance(self) -> dict[str, str]:
        """SHA-256 of every file's content.

        Raises
        ------
        FileNotFoundError
            If a file is missing.
        """
        files = {"inputs": self.inputs, "labels": self.labels, "heads": self.heads}
        return {
            name: content_digest(file, "heads file" if name == "heads" else f"{name} file")
            for name, file in files.items()
            if file is not None
        }

    def _layers(
        self, train: Examples, paths: tuple[int, ...]
    ) -> tuple[tuple[Layer, ...], str, str]:
        """Attention of training examples, its approximation, and a note on ignored arrays."""
        if paths:
            if self.heads is not None or self.readout != "last":
                name = "heads" if self.heads is not None else "readout"
                raise ValueError(
                    f"data file {self.inputs!r} holds attentioned inputs (paths), so that {name} "
                    f"{getattr(self, name)!r} has no place; leave it out"
                )
            return layers_along(paths), _CAPTURED, ""
        if self.heads is None:
            if train.layers is None:
                raise ValueError(
                    f"data file {self.inputs!r} holds no attention.1; add attention matrices, or "
                    "name a file of queries and keys with heads (--heads)"
                )
            return tuple(train.layers), _MATRICES, ""
        if train.layers is not None:
            raise ValueError(
                f"data file {self.inputs!r} holds attention matrices, so that heads {self.heads!r} "
                "have no place; leave one of the two out"
            )
        heads = heads_file.read_heads(self.heads)
        width = train.inputs.shape[2]
        expected = heads.layers[0].queries.shape[2]
        if width != expected:
            remedy = ""
            if expected == width + 1:
                remedy = ". If they have biases, append a constant with constant=True (--constant)"
            elif self.constant and expected == width - 1:
                remedy = ". Leave constant out"
            raise ValueError(
                f"heads file {self.heads!r} expects tokens of width {expected}, but those of "
                f"{self.inputs!r} have width {width}{remedy}"
            )
        return heads.layers, heads.approximation, heads.ignored

    def _widen_labels(self, examples: Examples) -> Examples:
        if not self.constant:
            return examples
        constant = np.ones((*examples.inputs.shape[:2], 1))
        inputs = np.concatenate([examples.inputs, constant], axis=2)
        return dataclasses.replace(examples, inputs=inputs)
