"""Statistical mechanics of attention paths in multi-head attention networks.

Arrays in, arrays out, on whatever array library they come from. See the README for a start.
"""

from pathkernel_core.action.continuation import minimise_actions
from pathkernel_core.action.minimise import gp_limit, minimise_action
from pathkernel_core.action.solution import Minimum, Prediction, Solution, Status
from pathkernel_core.action.stability import Response, Stability
from pathkernel_core.action.variance_choice import VarianceChoice, choose_variance
from pathkernel_core.contracts.task import Blocks, Examples, Realisation, Task, option
from pathkernel_core.energy.path_kernels import path_kernels
from pathkernel_core.energy.problem import Problem
from pathkernel_core.energy.statistics import SufficientStatistics, row_batches
from pathkernel_core.learned.maximum import AttentionMaximum, maximise_attention
from pathkernel_core.learned.posterior import AttentionDensity, AttentionPosterior
from pathkernel_core.paths.contraction import attentioned_inputs
from pathkernel_core.paths.gated import Gated
from pathkernel_core.paths.input_kernels import path_kernel, same_path_kernels, total_kernel
from pathkernel_core.paths.layers import Attention, AttentionProduct, KeyVectors, QueryKey
from pathkernel_core.paths.network import Network
from pathkernel_core.paths.order_parameter import (
    head_scores,
    order_parameter_from_weights,
    path_weights,
    skip_scores,
)
from pathkernel_core.paths.pullback import attention_gradients
from pathkernel_core.prediction.cross_validation import LeaveOneOut, leave_one_out
from pathkernel_core.prediction.differentiable import (
    DifferentiableSolution,
    differentiable_solution,
)
from pathkernel_core.prediction.scores import (
    Alignment,
    Regression,
    accuracy,
    kernel_task_alignment,
    regression,
)
from pathkernel_core.system.errors import (
    CloseMinimaWarning,
    MinimisationError,
    NotPositiveDefiniteError,
    OverfittingWarning,
    PrecisionError,
    ScaleWarning,
)

__all__ = [
    "Alignment",
    "Attention",
    "AttentionDensity",
    "AttentionMaximum",
    "AttentionPosterior",
    "AttentionProduct",
    "Blocks",
    "CloseMinimaWarning",
    "DifferentiableSolution",
    "Examples",
    "Gated",
    "KeyVectors",
    "LeaveOneOut",
    "MinimisationError",
    "Minimum",
    "Network",
    "NotPositiveDefiniteError",
    "OverfittingWarning",
    "Problem",
    "PrecisionError",
    "Prediction",
    "QueryKey",
    "Realisation",
    "Regression",
    "Response",
    "ScaleWarning",
    "Solution",
    "Stability",
    "Status",
    "SufficientStatistics",
    "Task",
    "VarianceChoice",
    "accuracy",
    "attention_gradients",
    "attentioned_inputs",
    "choose_variance",
    "differentiable_solution",
    "gp_limit",
    "head_scores",
    "kernel_task_alignment",
    "leave_one_out",
    "maximise_attention",
    "minimise_action",
    "minimise_actions",
    "option",
    "order_parameter_from_weights",
    "path_kernel",
    "path_kernels",
    "path_weights",
    "regression",
    "row_batches",
    "same_path_kernels",
    "skip_scores",
    "total_kernel",
]
