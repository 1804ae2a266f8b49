"""Seconds and bytes of evaluations and minimisations by the sizes of a problem.

Seconds are a sum over the operations of an evaluation, at rates fitted to times of one CPU core
with NumPy by ``python -m benchmarks.core.costs``. Other machines and libraries differ by similar
factors. The sizes alone, never a clock, decide on the cheapest form of the energy, so that the same
problem always has the same form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

FormName = Literal["examples", "features", "kernels"]

BLOCK = 128  # paths whose features example space mixes at once
WHITENED = 2**24  # elements of whitened features that it holds at once, 128 MiB in float64
PAIRS = 100, 2**27  # steps that a minimisation remembers, and elements of all of them, 1 GiB

TOGETHER = 3  # points whose evaluations read the kernels together, at least
_CACHED = 2**21  # elements of kernels that are read from the cache, 16 MiB in float64
_MOST_KERNELS = 2**27  # elements of kernels that are chosen unasked, 1 GiB in float64
_LONG = 0.08  # seconds of an evaluation; a minimisation of such takes about a second
_MIXED = 0.6  # seconds of evaluations with mixed precision, over those in float64 alone
_SHARED_BY = 20  # evaluations, at least, that share the kernels made once

MATRICES = 13
"""Matrices of all rows that an evaluation of classes holds."""

# seconds per operation of an evaluation, by form: the last line of python -m benchmarks.core.costs
RATES: Mapping[str, tuple[float, ...]] = {
    "examples": (9.9e-11, 6.1e-11, 1.5e-11, 8.1e-09, 1.8e-06, 2.1e-05),
    "features": (1.5e-10, 4e-11, 1.8e-08, 1.1e-04),
    "kernels": (3.1e-10, 2.7e-10, 6.4e-10, 3.8e-11, 5.7e-11, 1.5e-08, 6e-05),
    "chain": (6.7e-11, 4.3e-08, 2.2e-04),
    "examples of classes": (3.9e-11, 1.1e-10, 8.5e-08, 2e-03),
    "features of classes": (2e-11, 9e-10, 4.5e-08, 1.8e-03),
    "kernels of classes": (1.2e-10, 1.1e-10, 7.3e-08, 1.7e-03),
    "blocks of classes": (4e-10, 8.7e-08, 1.1e-04, 2.9e-03),
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of a problem: P examples along n paths of N_0 inputs, C outputs.

    Independent branches, ``shared=False``, have no pairs of different paths. Likelihoods of
    classes, ``classes=True``, have an energy at a mode that Newton's method finds.
    """

    examples: int
    paths: int
    inputs: int
    outputs: int = 1
    shared: bool = True
    classes: bool = False

    @property
    def pairs(self) -> int:
        """Pairs of paths with a kernel, each once."""
        return self.paths * (self.paths + 1) // 2 if self.shared else self.paths

    @property
    def kernel_elements(self) -> int:
        """Elements of the kernels of all pairs of paths, packed if there is one output."""
        if self.outputs > 1:
            return self.paths**2 * self.examples**2
        return self.pairs * (self.examples * (self.examples + 1) // 2)

    @property
    def most_kernels(self) -> int:
        """Elements of kernels that may be chosen unasked."""
        if self.shared:
            return _MOST_KERNELS
        # of wide inputs, the kernels of single branches are no larger than the features
        return max(_MOST_KERNELS, self.examples * self.paths * self.inputs)


def matrices_of_blocks(outputs: int) -> float:
    """Matrices (P, P) that an energy of classes with a kernel in common holds."""
    return 3.0 * outputs + 6.0


def reads_kernels_together(sizes: Sizes, points: int) -> bool:
    """Whether evaluations at so many points are faster together, in kernel space on the CPU.

    Kernels that stay in the cache are read as fast one point after another.
    """
    return sizes.outputs == 1 and points >= TOGETHER and sizes.kernel_elements > _CACHED


def operations(form: str, sizes: Sizes, points: int = 1) -> tuple[float, ...]:
    """Operations of one evaluation, in the order of its rates: multiplications, entries, calls.

    ``form`` is one of those of the energy, or "chain" for the order parameters on the host. The
    evaluation is one of so many points together.
    """
    rows, paths = sizes.examples * sizes.outputs, sizes.paths * sizes.outputs
    width = paths * sizes.inputs
    if sizes.classes and form != "chain":
        return _operations_of_classes(form, sizes)
    if form == "examples":  # mixing and sum of blocks, K and L⁻¹Φ, L, entries, a call per row
        mixing = 1.0 if paths <= BLOCK else 0.5 + 0.5 * BLOCK / paths
        mixed = (mixing + 0.5) * rows * paths * width * sizes.shared
        return mixed, rows**2 * width, rows**3, rows * width, rows, 1
    if form == "features":  # mixing and sum of blocks, L and L⁻¹, entries
        return 2.5 * width**2 * paths * sizes.shared, width**3 / 3, width**2, 1
    if form == "kernels":
        # kernels read, those read from beyond the cache; or a share of their reading for all
        # points, and their product; (K + T1)⁻¹, its entries
        kernels, beyond = 2 * sizes.kernel_elements, 2 * max(0, sizes.kernel_elements - _CACHED)
        reading = (kernels, beyond, 0, 0)
        if reads_kernels_together(sizes, points):
            reading = (0, 0, kernels / points, kernels)
        return *reading, rows**3 / 2, rows**2, 1
    return paths**3, paths**2, 1


def _operations_of_classes(form: str, sizes: Sizes) -> tuple[float, ...]:
    """Operations of one evaluation for classes: products, factorisations, entries, a call.

    An evaluation takes about four steps of Newton's method.
    """
    rows, width = sizes.examples * sizes.outputs, sizes.paths * sizes.inputs
    if form == "features":
        mixed = width * sizes.outputs
        return rows * mixed**2, mixed**3, rows * mixed, 1
    if form == "blocks":  # of the limit, from outputs of 0 and without the gradient
        return rows * sizes.examples**2, rows * sizes.examples, sizes.outputs, 1
    if form == "examples":
        products = sizes.outputs**2 * sizes.examples * width * (sizes.examples + sizes.paths)
    else:
        products = 2 * sizes.outputs**2 * sizes.kernel_elements
    return products, rows**3, rows**2, 1


def evaluation_seconds(form: str, sizes: Sizes, points: int = 1) -> float:
    """Seconds of one evaluation of energy and gradient in a form, on one core.

    It is one of so many points together, as :func:`pathkernel_core.minimise_actions` has them.
    """
    rates = RATES[f"{form} of classes" if sizes.classes and form != "chain" else form]
    return sum(rate * count for rate, count in zip(rates, operations(form, sizes, points)))


def cheapest_form(sizes: Sizes, points: int = 1) -> FormName:
    """Form of the energy with the fastest evaluations, some of which share the kernels.

    They are evaluations of so many points together.
    """
    seconds: dict[FormName, float] = {
        "examples": evaluation_seconds("examples", sizes),
        "features": evaluation_seconds("features", sizes),
    }
    if sizes.classes:
        return min(seconds, key=lambda form: seconds[form])
    if sizes.outputs == 1 and sizes.kernel_elements <= sizes.most_kernels:
        entries = sizes.pairs * sizes.examples**2
        _, product, _, entry, *_ = RATES["examples"]
        making = entries * (product * sizes.inputs + entry)
        shared_by = _SHARED_BY * points
        seconds["kernels"] = evaluation_seconds("kernels", sizes, points) + making / shared_by
    return min(seconds, key=lambda form: seconds[form])


def pays_in_single(form: str, sizes: Sizes) -> bool:
    """Whether descents that begin in float32 are faster, by enough to be worth a copy of the data.

    Evaluations take half of the time in float32, but the order parameters stay in float64 on the
    host. Of classes it is unmeasured.
    """
    seconds = evaluation_seconds(form, sizes)
    host = evaluation_seconds("chain", sizes) if sizes.shared else 0.0
    return not sizes.classes and seconds >= max(_LONG, 2 * host)


def limit_form(sizes: Sizes, form: str) -> str:
    """Form in which the Gaussian process limit is evaluated: "blocks" for several classes.

    They have a kernel in common there, and are factorised one by one, unless features are cheaper.
    """
    if not sizes.classes or sizes.outputs == 1:
        return form
    if form == "features" and evaluation_seconds(form, sizes) < evaluation_seconds("blocks", sizes):
        return form
    return "blocks"


def evaluations(sizes: Sizes, width: float) -> float:
    """Rough number of evaluations of a minimisation to the default tolerance.

    More labels per width move the minimum away from the Gaussian process limit. Low temperatures
    need up to half as many more, warm starts fewer. Classes tell less of the outputs, and move it
    less.
    """
    if sizes.classes:
        return 4 + 3 * (sizes.examples * sizes.outputs / width) ** 0.22
    return 4 + 7 * (sizes.examples * sizes.outputs / width) ** 0.42


def minimisation_seconds(sizes: Sizes, width: float, form: str | None = None) -> float:
    """Seconds of a minimisation on one core, in a form of the energy or the cheapest one."""
    form = cheapest_form(sizes) if form is None else form
    if math.isinf(width) and sizes.classes:
        return evaluation_seconds(limit_form(sizes, form), sizes)
    share = _MIXED if pays_in_single(form, sizes) else 1.0
    once = share * evaluation_seconds(form, sizes) + evaluation_seconds("chain", sizes)
    return evaluations(sizes, width) * once


def minimisation_bytes(sizes: Sizes, width: float, form: str | None = None) -> float:
    """Bytes of a problem and its minimisation at width N in float64, without the inputs.

    In a form of the energy, by default the cheapest.
    """
    form = cheapest_form(sizes) if form is None else form
    rows, paths = sizes.examples * sizes.outputs, sizes.paths * sizes.outputs
    features = stored = rows * paths * sizes.inputs
    if sizes.classes:
        factorised = paths * sizes.inputs if form == "features" else rows
        # factors and Newton's method; the features as they are, mixed, or the kernels
        elements = MATRICES * float(factorised) ** 2
        elements += 3.0 * features if form == "features" else 0.0
        if math.isinf(width) and limit_form(sizes, form) == "blocks":
            elements = matrices_of_blocks(sizes.outputs) * float(sizes.examples) ** 2
        elements += 2.0 * features / sizes.outputs**2
        elements += sizes.kernel_elements if form == "kernels" else 0.0
    elif form == "features":
        stored = (paths * sizes.inputs) ** 2
        elements = 5.0 * stored
    else:
        stored = features + (sizes.kernel_elements if form == "kernels" else 0)
        elements = stored + (features / sizes.outputs if sizes.outputs > 1 else 0.0) + 2.0 * rows**2
        if form == "examples":
            elements += 3 * min(features, WHITENED) + rows * min(paths, BLOCK) * sizes.inputs
        else:  # made path by path
            elements += (2.0 * paths + 3) * rows**2
    if pays_in_single(form, sizes):
        elements += 0.5 * stored  # a copy in float32
    memory, limit = PAIRS
    coordinates = (
        0.6 * paths**2
    )  # of all order parameters: a half, and more for layers of two heads
    pairs = min(evaluations(sizes, width), memory, limit / (2 * coordinates))
    return 8 * (elements + 8 * paths**2 + (5 + 2 * pairs) * coordinates)
