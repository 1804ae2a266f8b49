"""Names of ``pathkernel_core`` for editors, by docs/generate_names.py."""

from pathkernel_core.action.continuation import minimise_actions as minimise_actions
from pathkernel_core.action.minimise import gp_limit as gp_limit
from pathkernel_core.action.minimise import minimise_action as minimise_action
from pathkernel_core.action.solution import Minimum as Minimum
from pathkernel_core.action.solution import Prediction as Prediction
from pathkernel_core.action.solution import Solution as Solution
from pathkernel_core.action.solution import Status as Status
from pathkernel_core.action.stability import Response as Response
from pathkernel_core.action.stability import Stability as Stability
from pathkernel_core.action.variance_choice import VarianceChoice as VarianceChoice
from pathkernel_core.action.variance_choice import choose_variance as choose_variance
from pathkernel_core.contracts.options import option as option
from pathkernel_core.contracts.task import Blocks as Blocks
from pathkernel_core.contracts.task import Examples as Examples
from pathkernel_core.contracts.task import Realisation as Realisation
from pathkernel_core.contracts.task import Task as Task
from pathkernel_core.energy.path_kernels import path_kernels as path_kernels
from pathkernel_core.energy.problem import Problem as Problem
from pathkernel_core.energy.statistics import SufficientStatistics as SufficientStatistics
from pathkernel_core.energy.statistics import row_batches as row_batches
from pathkernel_core.learned.maximum import AttentionMaximum as AttentionMaximum
from pathkernel_core.learned.maximum import maximise_attention as maximise_attention
from pathkernel_core.learned.posterior import AttentionDensity as AttentionDensity
from pathkernel_core.learned.posterior import AttentionPosterior as AttentionPosterior
from pathkernel_core.paths.contraction import attentioned_inputs as attentioned_inputs
from pathkernel_core.paths.gated import Gated as Gated
from pathkernel_core.paths.input_kernels import path_kernel as path_kernel
from pathkernel_core.paths.input_kernels import same_path_kernels as same_path_kernels
from pathkernel_core.paths.input_kernels import total_kernel as total_kernel
from pathkernel_core.paths.layers import Attention as Attention
from pathkernel_core.paths.layers import AttentionProduct as AttentionProduct
from pathkernel_core.paths.layers import KeyVectors as KeyVectors
from pathkernel_core.paths.layers import QueryKey as QueryKey
from pathkernel_core.paths.network import Network as Network
from pathkernel_core.paths.order_parameter import head_scores as head_scores
from pathkernel_core.paths.order_parameter import (
    order_parameter_from_weights as order_parameter_from_weights,
)
from pathkernel_core.paths.order_parameter import path_weights as path_weights
from pathkernel_core.paths.order_parameter import skip_scores as skip_scores
from pathkernel_core.paths.pullback import attention_gradients as attention_gradients
from pathkernel_core.prediction.cross_validation import LeaveOneOut as LeaveOneOut
from pathkernel_core.prediction.cross_validation import leave_one_out as leave_one_out
from pathkernel_core.prediction.differentiable import (
    DifferentiableSolution as DifferentiableSolution,
)
from pathkernel_core.prediction.differentiable import (
    differentiable_solution as differentiable_solution,
)
from pathkernel_core.prediction.scores import Alignment as Alignment
from pathkernel_core.prediction.scores import Regression as Regression
from pathkernel_core.prediction.scores import accuracy as accuracy
from pathkernel_core.prediction.scores import kernel_task_alignment as kernel_task_alignment
from pathkernel_core.prediction.scores import regression as regression
from pathkernel_core.system.errors import CloseMinimaWarning as CloseMinimaWarning
from pathkernel_core.system.errors import MinimisationError as MinimisationError
from pathkernel_core.system.errors import NotPositiveDefiniteError as NotPositiveDefiniteError
from pathkernel_core.system.errors import OverfittingWarning as OverfittingWarning
from pathkernel_core.system.errors import PrecisionError as PrecisionError
from pathkernel_core.system.errors import ScaleWarning as ScaleWarning

MODULES: dict[str, str]
__all__: list[str]
