"""Names of ``pathkernel.heads`` for editors, by docs/generate_names.py."""

from pathkernel_datasets.variables.head_axis import scores_by_head as scores_by_head
from pathkernel_pruning.heads.evaluator import Evaluator as Evaluator
from pathkernel_pruning.heads.order_views import order_views as order_views
from pathkernel_pruning.heads.orders import compare_orders as compare_orders
from pathkernel_pruning.heads.orders import removed_heads as removed_heads
from pathkernel_pruning.heads.removal_games import best_of as best_of
from pathkernel_pruning.heads.removal_games import exact_shapley as exact_shapley
from pathkernel_pruning.heads.removal_games import greedy_order as greedy_order
from pathkernel_pruning.heads.removal_games import sampled_shapley as sampled_shapley
