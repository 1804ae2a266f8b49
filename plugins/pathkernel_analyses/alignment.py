"""Alignment of the renormalised kernel with the task, figures 2 and 3(d)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pathkernel_core.contracts.analysis import Analysis, Situation, Variable
from pathkernel_core.prediction.scores import kernel_task_alignment

COMPONENTS = 50


class KernelTaskAlignment(Analysis):
    """Overlap of the total kernel's leading principal components with the labels.

    For networks with one output; NaN for those with several.
    """

    name: ClassVar[str] = "kernel-task-alignment"
    summary: ClassVar[str] = "Overlap of the kernel's principal components with the labels"
    variables: ClassVar[tuple[Variable, ...]] = (
        Variable(
            "alignment",
            ("component",),
            "cosine overlap of a principal component of the kernel with the labels",
        ),
        Variable(
            "kernel_eigenvalue", ("component",), "eigenvalue of the kernel", equation="Eq. 10"
        ),
    )

    dimensions: ClassVar[Mapping[str, str]] = {
        "component": "principal component of the kernel, from the largest eigenvalue down"
    }

    def coordinates(self, situation: Situation) -> Mapping[str, Sequence[Any]]:
        """Principal components, numbered from 1 at the largest eigenvalue."""
        return {"component": range(1, min(COMPONENTS, situation.xi.shape[0]) + 1)}

    def compute(self, situation: Situation) -> Mapping[str, Any]:
        """Overlaps and eigenvalues, (component,)."""
        if situation.network.outputs > 1:
            undefined = np.full(min(COMPONENTS, situation.xi.shape[0]), np.nan)
            return {"alignment": undefined, "kernel_eigenvalue": undefined}
        kernel = situation.solution.training_kernel(situation.xi)
        labels = situation.labels if situation.labels.ndim == 1 else situation.labels[:, 0]
        alignment = kernel_task_alignment(kernel, labels, COMPONENTS)
        return {"alignment": alignment.overlaps, "kernel_eigenvalue": alignment.eigenvalues}
