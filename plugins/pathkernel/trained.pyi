"""Names of ``pathkernel.trained`` for editors, by docs/generate_names.py."""

from pathkernel_one_shot.idx import FASHION_MNIST as FASHION_MNIST
from pathkernel_one_shot.idx import IdxSet as IdxSet
from pathkernel_one_shot.idx import read_idx_set as read_idx_set
from pathkernel_one_shot.image_sources import RemoteFile as RemoteFile
from pathkernel_one_shot.settings import Training as Training
from pathkernel_one_shot.training import one_shot_accuracy as one_shot_accuracy
from pathkernel_one_shot.training import train_one_shot_images as train_one_shot_images
from pathkernel_one_shot.training_run import TrainingPlan as TrainingPlan
from pathkernel_one_shot.training_run import train as train
from pathkernel_trained.bundled import heads_path as heads_path
from pathkernel_trained.checkpoint import Checkpoint as Checkpoint
from pathkernel_trained.checkpoint import read_checkpoint as read_checkpoint
from pathkernel_trained.checkpoint import save_checkpoint as save_checkpoint
from pathkernel_trained.comparison import compare_order_parameters as compare_order_parameters
from pathkernel_trained.evaluator import PathEvaluator as PathEvaluator
from pathkernel_trained.evaluator import path_outputs as path_outputs
from pathkernel_trained.path_network import read_paths as read_paths
from pathkernel_trained.path_network import save_paths as save_paths
from pathkernel_trained.path_network import without_heads as without_heads
