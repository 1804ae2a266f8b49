"""Sizes of problems of classes that fit into memory, and errors about those that do not."""

from __future__ import annotations

import math

from pathkernel_core.energy.costs import MATRICES, matrices_of_blocks
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood
from pathkernel_core.system.errors import TooLargeError

MOST_ROWS = 6000
"""Largest number of rows P·C, or of features n·N_0·C, that are factorised for classes."""

_MOST_ELEMENTS = MATRICES * MOST_ROWS**2  # of all matrices of an evaluation


def check_rows(examples: int, outputs: int, remedy: str = ", or the squared loss") -> None:
    """Raise a TooLargeError if the rows (example, class) are too many for one factorisation.

    The remedy ends a sentence on fewer examples.
    """
    rows = examples * outputs
    if rows > MOST_ROWS:
        raise TooLargeError(
            f"{examples} examples with {outputs} outputs have P·C = {rows} rows, more than "
            f"{MOST_ROWS}: an evaluation of classes holds about {MATRICES} matrices of {rows} × "
            f"{rows}, {MATRICES * rows**2 / 2**27:.3g} GiB in float64; take at most "
            f"{MOST_ROWS // outputs} examples{remedy}"
        )


def allows_class_blocks(outputs: int, likelihood: ClassLikelihood) -> bool:
    """Whether classes with a kernel in common are factorised one by one."""
    return outputs > 1 and likelihood.is_multinomial


def check_classes(examples: int, outputs: int, likelihood: ClassLikelihood) -> None:
    """Raise a TooLargeError if not even the Gaussian process limit fits into memory."""
    if not allows_class_blocks(outputs, likelihood):
        check_rows(examples, outputs)
        return
    matrices = matrices_of_blocks(outputs)
    if matrices * examples**2 > _MOST_ELEMENTS:
        most = math.isqrt(int(_MOST_ELEMENTS / matrices))
        raise TooLargeError(
            f"{examples} examples with {outputs} outputs are too many even for the Gaussian "
            f"process limit, an evaluation of which holds about {matrices:g} matrices of "
            f"{examples} × {examples}, {matrices * examples**2 / 2**27:.3g} GiB in float64; take "
            f"at most {most} examples, and {MOST_ROWS // outputs} for finite widths, or the "
            "squared loss"
        )
