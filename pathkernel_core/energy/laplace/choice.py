"""Choice of the form of the energy of classes, by the sizes of a problem."""

from __future__ import annotations

from pathkernel_core.arrays.backend import Array
from pathkernel_core.energy.costs import Sizes, cheapest_form
from pathkernel_core.energy.laplace.features import LaplaceFeatures
from pathkernel_core.energy.laplace.forms import LaplaceExamples
from pathkernel_core.energy.laplace.sizes import MOST_ROWS, check_classes
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood
from pathkernel_core.system.errors import TooLargeError

_MOST_FEATURES = 2**28  # elements of mixed features in memory, 2 GiB in float64


def laplace_form(
    features: Array, targets: Array, likelihood: ClassLikelihood, space: str
) -> LaplaceExamples | LaplaceFeatures:
    """Form of the energy of classes from scaled features (P, n, N_0) and targets (P, C).

    Raises
    ------
    TooLargeError
        If rows or features are too many for memory in this form, or in both for "auto".
    ValueError
        If the form is "kernels", which is for given kernels.
    """
    (examples, paths, width), outputs = features.shape, targets.shape[1]
    if space == "kernels":
        raise ValueError(
            f'space="kernels" does not serve the {likelihood.name} likelihood of inputs; set '
            'space="auto", or give the kernels to Problem.from_kernels'
        )
    small_features = _fits(examples, outputs, paths * width * outputs)
    if space == "auto":
        sizes = Sizes(examples, paths, width, outputs, classes=True)
        few_rows = examples * outputs <= MOST_ROWS
        chosen = cheapest_form(sizes) if few_rows else "features"
        space = chosen if small_features else "examples"
    if space == "examples":
        check_classes(examples, outputs, likelihood)
        return LaplaceExamples(targets, likelihood, features=features)
    if not small_features:
        size = paths * width * outputs
        raise TooLargeError(
            f'space="features" would mix {examples} examples of {outputs} outputs with {size} '
            f"features, n·N_0·C, {examples * outputs * size / 2**27:.3g} GiB in float64; at most "
            f"{MOST_ROWS} features and {_MOST_FEATURES / 2**27:g} GiB are allowed. Set "
            'space="auto", or take fewer examples or paths'
        )
    return LaplaceFeatures(targets, likelihood, features=features)


def _fits(examples: int, outputs: int, size: int) -> bool:
    """Whether mixed features (P·C, n·N_0·C) fit into memory."""
    return size <= MOST_ROWS and examples * outputs * size <= _MOST_FEATURES
