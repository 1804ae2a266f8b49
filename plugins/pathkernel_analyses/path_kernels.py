"""Kernels of each path with itself, figure 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pathkernel_core.analysis import Analysis, Situation, Variable
from pathkernel_core.backend import to_host
from pathkernel_core.kernels import same_path_kernels

EXAMPLES = 100


class SamePathKernels(Analysis):
    """What each path alone sees in the training examples, sorted by label.

    At most 100 examples are kept, spread evenly over the training set, so that stores stay small.
    """

    name: ClassVar[str] = "same-path-kernels"
    summary: ClassVar[str] = "Kernel of every path with itself on training examples"
    of: ClassVar[str] = "data"
    variables: ClassVar[tuple[Variable, ...]] = (
        Variable(
            "same_path_kernel",
            ("path", "train_example", "train_example_dual"),
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
        """Training examples kept, counted in the order of decreasing label."""
        kept = range(min(EXAMPLES, situation.xi.shape[0]))
        return {"train_example": kept, "train_example_dual": kept}

    def compute(self, situation: Situation) -> Mapping[str, Any]:
        """Kernels (path, train_example, train_example_dual) and labels (train_example,)."""
        labels = to_host(situation.labels).reshape(situation.xi.shape[0], -1)[:, 0]
        order = np.argsort(-labels, kind="stable")
        count = min(EXAMPLES, len(order))
        kept = order[np.linspace(0, len(order) - 1, count).round().astype(int)]
        xi = situation.xi
        chosen = np.stack([to_host(xi[int(index), ...]) for index in kept])
        return {"same_path_kernel": same_path_kernels(chosen), "train_label": labels[kept]}
