"""Names of ``pathkernel.plugins`` for editors, by docs/generate_names.py."""

from pathkernel_core.arrays.backend import to_host as to_host
from pathkernel_core.contracts.analysis import Analysis as Analysis
from pathkernel_core.contracts.analysis import Situation as Situation
from pathkernel_core.contracts.analysis import Variable as Variable
from pathkernel_core.contracts.hooks import PluginError as PluginError
from pathkernel_core.contracts.hooks import Plugins as Plugins
from pathkernel_core.contracts.hooks import UnknownNameError as UnknownNameError
from pathkernel_core.contracts.hooks import hookimpl as hookimpl
from pathkernel_core.contracts.hooks import load_plugins as load_plugins
from pathkernel_core.contracts.options import option as option
from pathkernel_core.contracts.result import Result as Result
from pathkernel_core.contracts.sampler import Model as Model
from pathkernel_core.contracts.sampler import Sampler as Sampler
from pathkernel_core.contracts.task import Blocks as Blocks
from pathkernel_core.contracts.task import Examples as Examples
from pathkernel_core.contracts.task import Realisation as Realisation
from pathkernel_core.contracts.task import Task as Task
from pathkernel_core.contracts.testing import check_kernel as check_kernel
from pathkernel_core.contracts.testing import check_task as check_task
from pathkernel_core.system.progress import Progress as Progress
from pathkernel_datasets.testing import check_analysis as check_analysis
from pathkernel_datasets.testing import check_result as check_result
from pathkernel_pruning.live.testing import check_heads as check_heads
from pathkernel_sampling.testing import check_sampler as check_sampler
