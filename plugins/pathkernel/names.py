"""The one list of public names: by namespace, section of the reference, and defining module.

``pathkernel`` and its namespaces look names up here and import them at first use. The stubs
for editors and the pages of the reference are generated from it: ``python docs/generate_names.py``.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:  # of typing, whose import takes longer than this module's
    from collections.abc import Iterable

# "*" stands for the names of pathkernel_core.MODULES that the module defines: the core is usable
# alone, so that it declares them itself
PUBLIC: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "pathkernel": {
        "Attention, networks and paths": {
            "pathkernel_core.paths.layers": ("*",),
            "pathkernel_core.paths.gated": ("*",),
            "pathkernel_core.paths.contraction": ("*",),
            "pathkernel_core.energy.path_kernels": ("*",),
            "pathkernel_core.paths.network": ("*",),
        },
        "Problems, minimisation and solutions": {
            "pathkernel_core.energy.problem": ("*",),
            "pathkernel_core.energy.statistics": ("*",),
            "pathkernel_core.action.minimise": ("*",),
            "pathkernel_core.action.continuation": ("*",),
            "pathkernel_core.action.solution": ("*",),
            "pathkernel_core.action.stability": ("*",),
            "pathkernel_core.action.variance_choice": ("*",),
            "pathkernel_core.prediction.differentiable": ("*",),
            "pathkernel_core.energy.costs": (
                *("Sizes", "cheapest_form", "minimisation_seconds", "minimisation_bytes"),
            ),
        },
        "Kernels, head scores and accuracy": {
            "pathkernel_core.paths.input_kernels": ("*",),
            "pathkernel_core.paths.order_parameter": ("*",),
            "pathkernel_core.prediction.scores": ("*",),
            "pathkernel_core.prediction.cross_validation": ("*",),
        },
        "Learned queries and keys": {
            "pathkernel_core.learned.posterior": ("*",),
            "pathkernel_core.learned.maximum": ("*",),
            "pathkernel_core.paths.pullback": ("*",),
            "pathkernel_sampling.attention.corrections": ("next_order_density",),
        },
        "Studies and their folders": {
            "pathkernel_datasets.study.study": ("Study",),
            "pathkernel_datasets.run.run_study": ("run_study",),
            "pathkernel_datasets.folder.reading": ("open_study",),
            "pathkernel_datasets.results.stored_study": ("StoredStudy",),
            "pathkernel_datasets.results.run_result": ("run_result",),
            "pathkernel_datasets.selection.finite_width_gain": ("finite_width_gain",),
            "pathkernel_datasets.variables.swept_option": ("by_value",),
            "pathkernel_datasets.selection.selection": ("Selection",),
            "pathkernel_datasets.variables.labelling": ("storable",),
            "pathkernel_datasets.run.workers": ("processes", "cluster"),
            "pathkernel_core.system.progress": ("silent",),
            "pathkernel_tasks.heads_file": ("save_heads",),
        },
        "Samples and corrections": {
            "pathkernel_sampling.chains.diagnostics": ("diagnose", "predictor"),
            "pathkernel_sampling.corrections.next_order": ("next_order", "predict_next_order"),
        },
        "Live PyTorch models": {
            "pathkernel_models.heads_table": ("list_heads",),
            "pathkernel_models.cross_attention": ("include_cross_attention",),
            "pathkernel_models.attention_heads": ("AttentionHeads",),
            "pathkernel_models.heads_off": ("heads_off",),
            "pathkernel_capture.capture": ("capture",),
            "pathkernel_capture.captured": ("Captured",),
            "pathkernel_capture.network_choice": ("choose_network", "NetworkChoice"),
            "pathkernel_capture.theory_rises": ("theory_rises",),
        },
        "From a model to a smaller one": {
            "pathkernel_pruning.live.head_scores": ("gradient_scores", "magnitude_scores"),
            "pathkernel_pruning.live.head_choice": (
                *("curvature_scores", "choose_heads", "HeadChoice", "refit_gains"),
            ),
            "pathkernel_pruning.live.comparison": ("compare_heads",),
            "pathkernel_pruning.live.removal": ("remove_heads",),
            "pathkernel_pruning.live.saved.saving": ("save_model", "SavedModel"),
            "pathkernel_pruning.live.saved.loading": ("load_model",),
        },
        "Errors and warnings": {
            "pathkernel_core.system.errors": (
                *("PathkernelError", "MissingExtraError", "TooLargeError", "*"),
            ),
            "pathkernel_datasets.errors": (
                *("StudyError", "NotInStudyError", "TaskError", "StudyWarning"),
            ),
            "pathkernel_models.errors": ("CaptureError",),
        },
    },
    "pathkernel.plugins": {
        "Contracts of plugins, and their checks": {
            "pathkernel_core.contracts.task": ("*",),
            "pathkernel_core.contracts.options": ("*",),
            "pathkernel_core.contracts.testing": ("check_task", "check_kernel"),
            "pathkernel_core.contracts.analysis": ("Analysis", "Variable", "Situation"),
            "pathkernel_core.arrays.backend": ("to_host",),
            "pathkernel_core.contracts.result": ("Result",),
            "pathkernel_core.system.progress": ("Progress",),
            "pathkernel_datasets.testing": ("check_analysis", "check_result"),
            "pathkernel_core.contracts.sampler": ("Sampler", "Model"),
            "pathkernel_sampling.testing": ("check_sampler",),
            "pathkernel_pruning.live.testing": ("check_heads",),
        },
        "Hooks and loading of plugins": {
            "pathkernel_core.contracts.hooks": (
                *("hookimpl", "load_plugins", "Plugins", "PluginError", "UnknownNameError"),
            ),
        },
    },
    "pathkernel.views": {
        "Tables and charts": {
            "pathkernel_views.study_views": ("study_views",),
            "pathkernel_views.table": ("Table", "frame_of", "labelled_frame"),
            "pathkernel_views.chart": ("Chart", "NothingToPlot", "save_charts"),
            "pathkernel_views.primitives": ("lines", "bars", "points", "heatmaps"),
            "pathkernel_views.console": ("stdout_console",),
        },
    },
    "pathkernel.heads": {
        "Games and orders of heads": {
            "pathkernel_pruning.heads.orders": ("compare_orders", "removed_heads"),
            "pathkernel_pruning.heads.evaluator": ("Evaluator",),
            "pathkernel_datasets.variables.head_axis": ("scores_by_head",),
            "pathkernel_pruning.heads.order_views": ("order_views",),
            "pathkernel_pruning.heads.removal_games": (
                *("exact_shapley", "sampled_shapley", "greedy_order", "best_of"),
            ),
        },
    },
    "pathkernel.trained": {
        "Checkpoints and path networks": {
            "pathkernel_trained.checkpoint": ("Checkpoint", "read_checkpoint", "save_checkpoint"),
            "pathkernel_trained.path_network": ("read_paths", "save_paths", "without_heads"),
            "pathkernel_trained.bundled": ("heads_path",),
            "pathkernel_trained.comparison": ("compare_order_parameters",),
            "pathkernel_trained.evaluator": ("PathEvaluator", "path_outputs"),
        },
        "Training, and images": {
            "pathkernel_one_shot.training": ("train_one_shot_images", "one_shot_accuracy"),
            "pathkernel_one_shot.settings": ("Training",),
            "pathkernel_one_shot.training_run": ("TrainingPlan", "train"),
            "pathkernel_one_shot.idx": ("IdxSet", "read_idx_set", "FASHION_MNIST"),
            "pathkernel_one_shot.image_sources": ("RemoteFile",),
        },
    },
}

# libraries that a room imports at once, and the extra that installs them
EXTRAS = {
    "pathkernel_models": ("torch", ("torch",)),
    "pathkernel_capture": ("torch", ("torch",)),
    "pathkernel_pruning.live": ("torch", ("torch",)),
    "pathkernel_sampling": ("sampling", ("jax", "jaxlib", "blackjax", "arviz_base", "arviz_stats")),
    "pathkernel_one_shot": ("training", ("jax", "jaxlib", "optax")),
}


def module_of(namespace: str, name: str) -> str:
    """Module that defines a public name, or an empty text if the namespace has no such name."""
    of_core = []
    for section in PUBLIC[namespace].values():
        for module, names in section.items():
            if name in names:
                return module
            if "*" in names:
                of_core.append(module)
    module = importlib.import_module("pathkernel_core").MODULES.get(name, "")
    return module if module in of_core else ""


def names_of(namespace: str, title: str) -> dict[str, str]:
    """Module of every name in a section of the reference, in its order."""
    of_core = importlib.import_module("pathkernel_core").MODULES
    modules = {}
    for module, names in PUBLIC[namespace][title].items():
        for name in names:
            if name != "*":
                modules[name] = module
                continue
            modules |= {name: place for name, place in of_core.items() if place == module}
    return modules


def every_name(namespace: str) -> dict[str, str]:
    """Module of every public name of a namespace."""
    sections = PUBLIC[namespace]
    return {name: at for title in sections for name, at in names_of(namespace, title).items()}


def listed_names(namespace: str) -> list[str]:
    """Sorted names of a namespace without those of missing extras.

    Help and completion look up all that is listed.
    """
    find = importlib.import_module("importlib.util").find_spec
    modules = every_name(namespace)
    return sorted(name for name in modules if all(map(find, _extra(modules[name])[1])))


def imported(namespace: str, name: str) -> object:
    """Import the object of a public name.

    Raises
    ------
    AttributeError
        If the namespace has no such name; the message says which one has, or suggests a name.
    MissingExtraError
        If its module needs an extra that is not installed.
    """
    is_private = name.startswith("_")
    module = "" if is_private else module_of(namespace, name)
    if not module:
        hint = "" if is_private else suggestion(namespace, name, every_name(namespace))
        raise AttributeError(f"module {namespace!r} has no attribute {name!r}{hint}")
    extra, libraries = _extra(module)
    if not extra:
        return getattr(importlib.import_module(module), name)
    extras = importlib.import_module("pathkernel_core.system.extras")
    imported_module = extras.import_extra(module, f"{namespace}.{name}", extra, libraries)
    return getattr(imported_module, name)


def suggestion(namespace: str, name: str, own: Iterable[str]) -> str:
    """End of a message on an unknown name: where it is, or the nearest of a namespace's own names.

    Parameters
    ----------
    namespace, name : str
    own : iterable of str
        Names of the namespace.
    """
    for other in PUBLIC:
        if other != namespace and module_of(other, name):
            return f". It is {other}.{name}"
    others = [other for other in PUBLIC if other != namespace]
    known = {near: f"{other}.{near}" for other in others for near in every_name(other)}
    known |= {near: near for near in own}
    nearest = importlib.import_module("difflib").get_close_matches(name, known, n=1)
    return f". Did you mean: {known[nearest[0]]!r}?" if nearest else ""


def _extra(module: str) -> tuple[str, tuple[str, ...]]:
    rooms = (extra for room, extra in EXTRAS.items() if f"{module}.".startswith(f"{room}."))
    return next(rooms, ("", ()))
