"""Statistical mechanics of attention paths in multi-head attention networks.

Arrays in, arrays out, on whatever array library they come from. See the README for a start. Names
are imported at their first use.
"""

from __future__ import annotations

import importlib

MODULES = {
    "Alignment": "pathkernel_core.prediction.scores",
    "Attention": "pathkernel_core.paths.layers",
    "AttentionDensity": "pathkernel_core.learned.posterior",
    "AttentionMaximum": "pathkernel_core.learned.maximum",
    "AttentionPosterior": "pathkernel_core.learned.posterior",
    "AttentionProduct": "pathkernel_core.paths.layers",
    "Blocks": "pathkernel_core.contracts.task",
    "CloseMinimaWarning": "pathkernel_core.system.errors",
    "DifferentiableSolution": "pathkernel_core.prediction.differentiable",
    "Examples": "pathkernel_core.contracts.task",
    "Gated": "pathkernel_core.paths.gated",
    "KeyVectors": "pathkernel_core.paths.layers",
    "LeaveOneOut": "pathkernel_core.prediction.cross_validation",
    "MinimisationError": "pathkernel_core.system.errors",
    "Minimum": "pathkernel_core.action.solution",
    "Network": "pathkernel_core.paths.network",
    "NotPositiveDefiniteError": "pathkernel_core.system.errors",
    "OverfittingWarning": "pathkernel_core.system.errors",
    "PrecisionError": "pathkernel_core.system.errors",
    "Prediction": "pathkernel_core.action.solution",
    "Problem": "pathkernel_core.energy.problem",
    "QueryKey": "pathkernel_core.paths.layers",
    "Realisation": "pathkernel_core.contracts.task",
    "Regression": "pathkernel_core.prediction.scores",
    "Response": "pathkernel_core.action.stability",
    "ScaleWarning": "pathkernel_core.system.errors",
    "Solution": "pathkernel_core.action.solution",
    "Stability": "pathkernel_core.action.stability",
    "Status": "pathkernel_core.action.solution",
    "SufficientStatistics": "pathkernel_core.energy.statistics",
    "Task": "pathkernel_core.contracts.task",
    "VarianceChoice": "pathkernel_core.action.variance_choice",
    "accuracy": "pathkernel_core.prediction.scores",
    "attention_gradients": "pathkernel_core.paths.pullback",
    "attentioned_inputs": "pathkernel_core.paths.contraction",
    "choose_variance": "pathkernel_core.action.variance_choice",
    "differentiable_solution": "pathkernel_core.prediction.differentiable",
    "gp_limit": "pathkernel_core.action.minimise",
    "head_scores": "pathkernel_core.paths.order_parameter",
    "kernel_task_alignment": "pathkernel_core.prediction.scores",
    "leave_one_out": "pathkernel_core.prediction.cross_validation",
    "maximise_attention": "pathkernel_core.learned.maximum",
    "minimise_action": "pathkernel_core.action.minimise",
    "minimise_actions": "pathkernel_core.action.continuation",
    "option": "pathkernel_core.contracts.options",
    "order_parameter_from_weights": "pathkernel_core.paths.order_parameter",
    "path_kernel": "pathkernel_core.paths.input_kernels",
    "path_kernels": "pathkernel_core.energy.path_kernels",
    "path_weights": "pathkernel_core.paths.order_parameter",
    "regression": "pathkernel_core.prediction.scores",
    "row_batches": "pathkernel_core.energy.statistics",
    "same_path_kernels": "pathkernel_core.paths.input_kernels",
    "skip_scores": "pathkernel_core.paths.order_parameter",
    "total_kernel": "pathkernel_core.paths.input_kernels",
}
"""Module that defines each public name; the stub for editors is generated from it."""

__all__ = list(MODULES)


def __getattr__(name: str) -> object:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *MODULES])
