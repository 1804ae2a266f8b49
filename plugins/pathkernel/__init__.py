"""Statistical mechanics of attention paths: every documented name, imported when first used.

>>> import pathkernel as pk
>>> network = pk.Network(heads=(2, 2), widths=10)

These are the names of ``pathkernel_core``, those of the table below, and the classes of all tasks,
results, samplers and analyses of the installed plugins. ``__init__.pyi`` lists them for editors.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:  # of typing, whose import takes longer than this module's
    from types import ModuleType

    from pathkernel_core.contracts.hooks import Plugins

_NAMES = {
    "pathkernel_core.contracts.analysis": ("Analysis", "Situation", "Variable"),
    "pathkernel_core.arrays.backend": ("to_host",),
    "pathkernel_core.energy.costs": (
        "Sizes",
        "cheapest_form",
        "minimisation_bytes",
        "minimisation_seconds",
    ),
    "pathkernel_core.system.errors": ("MissingExtraError", "PathkernelError", "TooLargeError"),
    "pathkernel_core.contracts.hooks": (
        *("LoadedPlugin", "PluginError", "Plugins", "UnknownNameError"),
        *("hookimpl", "load_plugins"),
    ),
    "pathkernel_core.system.progress": ("Progress", "silent"),
    "pathkernel_core.contracts.result": ("Result",),
    "pathkernel_core.contracts.sampler": ("Model", "Sampler"),
    "pathkernel_core.contracts.testing": ("check_task",),
    "pathkernel_datasets.errors": (
        *("NotInStudyError", "StudyError", "StudyWarning", "TaskError"),
    ),
    "pathkernel_datasets.selection.finite_width_gain": ("finite_width_gain",),
    "pathkernel_datasets.variables.labelling": ("storable",),
    "pathkernel_datasets.folder.reading": ("open_study",),
    "pathkernel_datasets.results.run_result": ("run_result",),
    "pathkernel_datasets.run.run_study": ("run_study",),
    "pathkernel_datasets.selection.selection": ("Selection",),
    "pathkernel_datasets.results.stored_study": ("StoredStudy",),
    "pathkernel_datasets.study.study": ("Study",),
    "pathkernel_datasets.variables.swept_option": ("by_value",),
    "pathkernel_datasets.testing": ("check_analysis", "check_result"),
    "pathkernel_datasets.run.workers": ("cluster", "processes"),
    "pathkernel_views.chart": ("Chart", "NothingToPlot", "save_charts"),
    "pathkernel_views.console": ("stdout_console",),
    "pathkernel_views.primitives": ("bars", "heatmaps", "lines", "points"),
    "pathkernel_views.study_views": ("study_views",),
    "pathkernel_views.table": ("Table", "frame_of", "labelled_frame"),
    "pathkernel_tasks.heads_file": ("save_heads",),
    "pathkernel_sampling.attention.corrections": ("next_order_density",),
    "pathkernel_sampling.corrections.next_order": ("next_order", "predict_next_order"),
    "pathkernel_sampling.chains.diagnostics": ("diagnose", "predictor"),
    "pathkernel_sampling.testing": ("check_sampler",),
    "pathkernel_pruning.heads.correlation": ("Bootstrap",),
    "pathkernel_pruning.heads.evaluated_scores": ("score_by_evaluation",),
    "pathkernel_pruning.heads.evaluator": ("Evaluator",),
    "pathkernel_pruning.heads.head_game": ("HeadGame",),
    "pathkernel_datasets.variables.head_axis": ("scores_by_head",),
    "pathkernel_pruning.heads.measuring": ("correlate_scores", "measure_orders"),
    "pathkernel_pruning.heads.order_views": ("order_views",),
    "pathkernel_pruning.heads.orders": ("compare_orders", "removed_heads"),
    "pathkernel_pruning.heads.removal_games": (
        *("best_of", "exact_shapley", "greedy_order", "sampled_shapley"),
    ),
    "pathkernel_pruning.heads.removals": ("removed_at_random", "removed_by_score"),
    "pathkernel_pruning.heads.scores": ("score_table",),
    "pathkernel_trained.bundled": ("heads_path",),
    "pathkernel_trained.checkpoint": ("Checkpoint", "read_checkpoint", "save_checkpoint"),
    "pathkernel_trained.comparison": ("compare_order_parameters",),
    "pathkernel_trained.evaluator": ("PathEvaluator", "path_outputs"),
    "pathkernel_trained.path_network": ("read_paths", "save_paths", "without_heads"),
    "pathkernel_models.attention_heads": ("AttentionHeads",),
    "pathkernel_models.errors": ("CaptureError",),
    "pathkernel_models.heads_off": ("heads_off",),
    "pathkernel_models.heads_table": ("list_heads",),
    "pathkernel_capture.capture": ("capture",),
    "pathkernel_capture.captured": ("Captured",),
    "pathkernel_capture.network_choice": ("NetworkChoice", "choose_network"),
    "pathkernel_capture.theory_rises": ("theory_rises",),
    "pathkernel_pruning.live.comparison": ("compare_heads",),
    "pathkernel_pruning.live.head_choice": (
        *("HeadChoice", "choose_heads", "curvature_scores", "refit_gains"),
    ),
    "pathkernel_pruning.live.head_scores": ("gradient_scores", "magnitude_scores"),
    "pathkernel_pruning.live.removal": ("remove_heads",),
    "pathkernel_pruning.live.saving": ("SavedModel", "load_model", "save_model"),
    "pathkernel_one_shot.idx": ("FASHION_MNIST", "IdxSet", "read_idx_set"),
    "pathkernel_one_shot.image_sources": ("RemoteFile",),
    "pathkernel_one_shot.settings": ("Training",),
    "pathkernel_one_shot.training": ("one_shot_accuracy", "train_one_shot_images"),
    "pathkernel_one_shot.training_run": ("TrainingPlan", "train"),
}

# libraries that a room imports at once, and the extra that installs them
_EXTRAS = {
    "pathkernel_models": ("torch", ("torch",)),
    "pathkernel_capture": ("torch", ("torch",)),
    "pathkernel_pruning.live": ("torch", ("torch",)),
    "pathkernel_sampling": ("sampling", ("jax", "jaxlib", "blackjax", "arviz_base", "arviz_stats")),
    "pathkernel_one_shot": ("training", ("jax", "jaxlib", "optax")),
}


def __getattr__(name: str) -> object:
    """Import a name at its first use.

    Raises
    ------
    AttributeError
        If there is no such name; the message suggests one.
    PluginError
        If plugins provide different classes of this name.
    MissingExtraError
        If its module needs an extra that is not installed.
    """
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("pathkernel")
    if name.startswith("_"):
        raise AttributeError(f"module 'pathkernel' has no attribute {name!r}")
    for module, names in _NAMES.items():
        if name in names:
            return getattr(_import(module, name), name)
    core = importlib.import_module("pathkernel_core")
    if name in core.__all__:
        return getattr(core, name)
    plugins = _plugins()
    if name in plugins.classes():
        provided = plugins.class_named(name)
        # a plugin that uses this name while it is imported has failed for now, and may have a clash
        if not plugins.failures():
            globals()[name] = provided
        return provided
    nearest = importlib.import_module("difflib").get_close_matches(name, __dir__(), n=1)
    hint = f". Did you mean: {nearest[0]!r}?" if nearest else ""
    raise AttributeError(f"module 'pathkernel' has no attribute {name!r}{hint}{plugins.failures()}")


def __dir__() -> list[str]:
    # without names that need a missing extra: help and completion look up all that are listed
    core = importlib.import_module("pathkernel_core")
    find = importlib.import_module("importlib.util").find_spec
    offered = {
        name
        for module, names in _NAMES.items()
        for name in names
        if all(map(find, _extra_of(module)[1]))
    }
    return sorted({*core.__all__, *offered, *_plugins().classes()})


def _import(module: str, name: str) -> ModuleType:
    extra, libraries = _extra_of(module)
    if not extra:
        return importlib.import_module(module)
    extras = importlib.import_module("pathkernel_core.system.extras")
    return extras.import_extra(module, f"pathkernel.{name}", extra, libraries)


def _extra_of(module: str) -> tuple[str, tuple[str, ...]]:
    rooms = (extra for room, extra in _EXTRAS.items() if f"{module}.".startswith(f"{room}."))
    return next(rooms, ("", ()))


def _plugins() -> Plugins:
    # in strict mode, one that fails would take away the names of all others
    return importlib.import_module("pathkernel_core.contracts.hooks").load_plugins(strict=False)
