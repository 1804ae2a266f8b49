"""Kernels of each path with itself, and total kernels of all pairs of paths, figure 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pathkernel_core.arrays.backend import to_host
from pathkernel_core.contracts.analysis import Analysis, Situation, Variable
from pathkernel_core.paths.input_kernels import same_path_kernels, total_kernel
from pathkernel_core.paths.order_parameter import scaled_order_parameter

EXAMPLES = 50
_KERNEL = ("train_example", "train_example_dual")


class SamePathKernels(Analysis):
    """Kernel of each path with itself on training examples, sorted by label.

    It takes at most 50 examples, as in the paper, spread evenly over the training set, so that
    files stay small.
    """

    name: ClassVar[str] = "same-path-kernels"
    summary: ClassVar[str] = "Kernel of every path with itself on training examples"
    scope: ClassVar[str] = "data"
    variables: ClassVar[tuple[Variable, ...]] = (
        Variable(
            "same_path_kernel",
            ("path", *_KERNEL),
            "kernel of a path with itself on training examples, sorted by decreasing label",
            equation="Eq. 10",
        ),
        Variable("train_label", ("train_example",), "label of the training example"),
    )

    dimensions: ClassVar[Mapping[str, str]] = {
        "train_example": "training example kept, by decreasing label",
        "train_example_dual": "training example kept, of the kernel's second index",
    }

    def coordinates(self, situation: Situation) -> Mapping[str, Sequence[Any]]:
        """Numbers of the stored training examples, in the order of decreasing label."""
        return dict.fromkeys(_KERNEL, range(min(EXAMPLES, situation.xi.shape[0])))

    def compute(self, situation: Situation) -> Mapping[str, Any]:
        """Kernels (path, train_example, train_example_dual) and labels (train_example,)."""
        xi, labels = _stored_examples(situation)
        return {"same_path_kernel": same_path_kernels(xi), "train_label": labels}


class TotalKernels(SamePathKernels):
    """Kernel of the network on the same examples: all pairs of paths, weighted by U.

    For networks with one output; NaN for those with several.
    """

    name: ClassVar[str] = "total-kernels"
    summary: ClassVar[str] = "Total kernel on training examples, renormalised and in the limit"
    scope: ClassVar[str] = "solution"
    variables: ClassVar[tuple[Variable, ...]] = (
        Variable(
            "total_kernel",
            _KERNEL,
            "total kernel on training examples, sorted by decreasing label",
            equation="Eq. 10",
        ),
    )

    def compute(self, situation: Situation) -> Mapping[str, Any]:
        """Kernel (train_example, train_example_dual)."""
        if situation.network.outputs > 1:
            count = min(EXAMPLES, situation.xi.shape[0])
            return {"total_kernel": np.full((count, count), np.nan)}
        weights = scaled_order_parameter(situation.network, situation.solution.order_parameter)
        variance = situation.network.kernel_variance
        return {
            "total_kernel": total_kernel(_stored_examples(situation)[0], weights, variance=variance)
        }


def _stored_examples(situation: Situation) -> tuple[np.ndarray, np.ndarray]:
    """Attentioned inputs and labels of the examples whose kernels are stored."""
    labels = to_host(situation.realisation.train.labels)  # not centred
    labels = labels.reshape(len(labels), -1)[:, 0]
    order = np.argsort(-labels, kind="stable")
    count = min(EXAMPLES, len(order))
    indices = order[np.linspace(0, len(order) - 1, count).round().astype(int)]
    return np.stack([to_host(situation.xi[int(index), ...]) for index in indices]), labels[indices]
