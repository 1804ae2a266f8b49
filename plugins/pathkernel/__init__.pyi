"""Names of ``pathkernel`` for editors, by docs/generate_names.py."""

from typing import Any

from pathkernel import heads as heads
from pathkernel import plugins as plugins
from pathkernel import trained as trained
from pathkernel import views as views
from pathkernel_analyses.alignment import KernelTaskAlignment as KernelTaskAlignment
from pathkernel_analyses.heads import HeadScores as HeadScores
from pathkernel_analyses.path_kernels import SamePathKernels as SamePathKernels
from pathkernel_analyses.path_kernels import TotalKernels as TotalKernels
from pathkernel_capture.capture import capture as capture
from pathkernel_capture.captured import Captured as Captured
from pathkernel_capture.network_choice import NetworkChoice as NetworkChoice
from pathkernel_capture.network_choice import choose_network as choose_network
from pathkernel_capture.theory_rises import theory_rises as theory_rises
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
from pathkernel_core.energy.costs import Sizes as Sizes
from pathkernel_core.energy.costs import cheapest_form as cheapest_form
from pathkernel_core.energy.costs import minimisation_bytes as minimisation_bytes
from pathkernel_core.energy.costs import minimisation_seconds as minimisation_seconds
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
from pathkernel_core.system.errors import MissingExtraError as MissingExtraError
from pathkernel_core.system.errors import NotPositiveDefiniteError as NotPositiveDefiniteError
from pathkernel_core.system.errors import OverfittingWarning as OverfittingWarning
from pathkernel_core.system.errors import PathkernelError as PathkernelError
from pathkernel_core.system.errors import PrecisionError as PrecisionError
from pathkernel_core.system.errors import ScaleWarning as ScaleWarning
from pathkernel_core.system.errors import TooLargeError as TooLargeError
from pathkernel_core.system.progress import silent as silent
from pathkernel_datasets.errors import NotInStudyError as NotInStudyError
from pathkernel_datasets.errors import StudyError as StudyError
from pathkernel_datasets.errors import StudyWarning as StudyWarning
from pathkernel_datasets.errors import TaskError as TaskError
from pathkernel_datasets.folder.reading import open_study as open_study
from pathkernel_datasets.results.run_result import run_result as run_result
from pathkernel_datasets.results.stored_study import StoredStudy as StoredStudy
from pathkernel_datasets.run.run_study import run_study as run_study
from pathkernel_datasets.run.workers import cluster as cluster
from pathkernel_datasets.run.workers import processes as processes
from pathkernel_datasets.selection.finite_width_gain import finite_width_gain as finite_width_gain
from pathkernel_datasets.selection.selection import Selection as Selection
from pathkernel_datasets.study.study import Study as Study
from pathkernel_datasets.variables.labelling import storable as storable
from pathkernel_datasets.variables.swept_option import by_value as by_value
from pathkernel_models.attention_heads import AttentionHeads as AttentionHeads
from pathkernel_models.cross_attention import include_cross_attention as include_cross_attention
from pathkernel_models.errors import CaptureError as CaptureError
from pathkernel_models.heads_off import heads_off as heads_off
from pathkernel_models.heads_table import list_heads as list_heads
from pathkernel_one_shot.task import OneShotImages as OneShotImages
from pathkernel_phases.results import LearningCurves as LearningCurves
from pathkernel_phases.results import Phases as Phases
from pathkernel_pruning.live.comparison import compare_heads as compare_heads
from pathkernel_pruning.live.head_choice import HeadChoice as HeadChoice
from pathkernel_pruning.live.head_choice import choose_heads as choose_heads
from pathkernel_pruning.live.head_choice import curvature_scores as curvature_scores
from pathkernel_pruning.live.head_choice import refit_gains as refit_gains
from pathkernel_pruning.live.head_scores import gradient_scores as gradient_scores
from pathkernel_pruning.live.head_scores import magnitude_scores as magnitude_scores
from pathkernel_pruning.live.removal import remove_heads as remove_heads
from pathkernel_pruning.live.saved.loading import load_model as load_model
from pathkernel_pruning.live.saved.saving import SavedModel as SavedModel
from pathkernel_pruning.live.saved.saving import save_model as save_model
from pathkernel_sampling.attention.corrections import next_order_density as next_order_density
from pathkernel_sampling.chains.diagnostics import diagnose as diagnose
from pathkernel_sampling.chains.diagnostics import predictor as predictor
from pathkernel_sampling.corrections.next_order import next_order as next_order
from pathkernel_sampling.corrections.next_order import predict_next_order as predict_next_order
from pathkernel_sampling.plugin import PosteriorSampler as PosteriorSampler
from pathkernel_sampling.results import LearnedAttention as LearnedAttention
from pathkernel_sampling.results import NextOrder as NextOrder
from pathkernel_sampling.results import Samples as Samples
from pathkernel_tasks.copying import Copying as Copying
from pathkernel_tasks.custom import Custom as Custom
from pathkernel_tasks.heads_file import save_heads as save_heads
from pathkernel_tasks.hidden_markov import HiddenMarkov as HiddenMarkov
from pathkernel_tasks.single_location import SingleLocation as SingleLocation
from pathkernel_trained.results import Comparison as Comparison
from pathkernel_trained.results import Pruning as Pruning

__version__: str

def __getattr__(name: str) -> Any: ...  # classes of other plugins
