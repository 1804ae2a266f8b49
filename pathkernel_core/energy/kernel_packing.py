"""Kernels of pairs of paths, or of branches, as a user gives them: checked, and packed.

Pairs are checked as one matrix over pairs of path and example, branches one by one: a weak branch
may be wrong beside a strong one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    batches,
    compile_function,
    fill_rows,
    from_host,
    is_tracer,
    is_true,
    packed_order,
    real_floating,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.costs import WHITENED, Sizes
from pathkernel_core.energy.given_kernels import GivenKernels, mixed_kernel
from pathkernel_core.energy.kernel_index import BranchIndex, PairIndex
from pathkernel_core.energy.laplace.forms import LaplaceKernels
from pathkernel_core.energy.laplace.sizes import check_classes
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood, Likelihood
from pathkernel_core.energy.statistics import check_given
from pathkernel_core.system.errors import NotPositiveDefiniteError

MOST_KERNELS = 2**30
"""Largest number of elements of all kernels in memory, 8 GiB in float64."""

EXACT_ROWS = 1000
"""Rows n·P up to which all eigenvalues of given kernels are computed."""
_PROBES_OF_EXAMPLES = 2  # random vectors by path and example, where there are more
_PROBES = 8  # random mixtures of paths, or quadratic forms of a branch, where there are more


def given_kernels(
    kernels: Array, labels: Array, branches: bool, likelihood: Likelihood
) -> GivenKernels | LaplaceKernels:
    """Energy of given kernels; see :meth:`pathkernel_core.Problem.from_kernels`."""
    check = _of_branches if branches else _of_pairs
    given = check(kernels, labels, likelihood)
    if likelihood.is_gaussian:
        return given
    return LaplaceKernels(given.labels, cast("ClassLikelihood", likelihood), given=given)


def _of_pairs(kernels: Array, labels: Array, likelihood: Likelihood) -> GivenKernels:
    xp = array_namespace(kernels=kernels, labels=labels)
    check_given("kernels", kernels)
    shape, paths = tuple(kernels.shape), paths_of(kernels)
    check_size(paths, shape[-1], labels.shape[1] if labels.ndim > 1 else 1)
    kernels = real_floating("kernels", kernels, ("n",) * (len(shape) - 2) + ("P", "P"))
    labels = _targets(labels, kernels, likelihood)
    check_size(paths, *labels.shape)
    deviation = _asymmetry(kernels, paths)
    rounding = _rounding(kernels)
    if deviation > rounding * max(float(xp.max(kernels)), -float(xp.min(kernels))):
        raise ValueError(
            f"kernels of shape {shape} must be symmetric, C_ππ'(x, x') = C_π'π(x', x), but entries "
            f"differ by up to {deviation:.3g}"
        )
    index = PairIndex(paths, labels.shape[1])
    pack = compile_function(packed_kernels, xp, static=("index",))
    form = GivenKernels(pack(kernels, index=index), labels, index)
    _check_positive(kernels, form, index, rounding)
    return form


def _targets(labels: Array, kernels: Array, likelihood: Likelihood) -> Array:
    """Targets (P, C) of kernels (…, P, P), checked before work is done."""
    targets = likelihood.targets(labels, "kernels", kernels, kernels.shape[-1])
    if not likelihood.is_gaussian:
        examples, outputs = targets.shape
        check_classes(examples, outputs, cast("ClassLikelihood", likelihood))
    return targets


def _of_branches(kernels: Array, labels: Array, likelihood: Likelihood) -> GivenKernels:
    xp = array_namespace(kernels=kernels, labels=labels)
    check_given("kernels", kernels)
    shape = tuple(kernels.shape)
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ValueError(
            f"kernels must have shape (n, P, P), one matrix for each branch, but has {shape}; "
            "kernels of all pairs of paths are for branches=False"
        )
    elements = shape[0] * (shape[1] * (shape[1] + 1) // 2)
    if elements > MOST_KERNELS:
        raise ValueError(
            f"the kernels of {shape[0]} branches between {shape[1]} examples have {elements:.2g} "
            f"elements, {elements / 2**27:.2g} GiB in float64, more than {MOST_KERNELS:.2g}; take "
            "fewer branches or examples, or give their inputs to Problem"
        )
    kernels = real_floating("kernels", kernels, ("n", "P", "P"))
    labels = _targets(labels, kernels, likelihood)
    if labels.shape[1] > 1:
        raise ValueError(
            f"labels have {labels.shape[1]} outputs, but independent branches have one, since u_l "
            "would be a matrix over outputs; give kernels of all pairs of paths, branches=False"
        )
    subject = f"kernels of shape {shape}"
    by_branch = batches(shape[0], max(1, WHITENED // shape[1] ** 2))

    def packed() -> Iterator[Array]:
        for batch in by_branch:  # which bounds copies
            part = kernels[batch, ...]
            _check_symmetric_matrices(part, subject, "C_ll(x, x') = C_ll(x', x)")
            _check_positive_matrices(part, subject, "branch", shape[0] * shape[1])
            yield compile_function(_packed_branches, xp)(part, float(shape[0]))

    return GivenKernels(fill_rows(packed(), shape[0]), labels, BranchIndex(shape[0]))


def paths_of(kernels: Array) -> int:
    """Number n of paths of kernels (n, n, P, P) or (n(n + 1)/2, P, P).

    Raises
    ------
    ValueError
        If they have another shape.
    """
    shape = tuple(kernels.shape)
    if len(shape) == 3:
        paths = math.isqrt(2 * shape[0])
        is_shaped = 2 * shape[0] == paths * (paths + 1)
    else:
        paths, is_shaped = shape[0] if shape else 0, len(shape) == 4 and shape[0] == shape[1]
    if not is_shaped or shape[-1] != shape[-2]:
        raise ValueError(
            "kernels must have shape (n, n, P, P), or (n(n + 1)/2, P, P) for the pairs of paths "
            f"π ≤ π' alone, but has {shape}"
        )
    return paths


def check_size(
    paths: int, examples: int, outputs: int, remedy: str = "take fewer paths or examples"
) -> None:
    """Raise a ValueError if the kernels of all pairs of paths are too large for memory."""
    elements = Sizes(examples, paths, 1, outputs).kernel_elements
    if elements > MOST_KERNELS:
        raise ValueError(
            f"the kernels of all pairs of {paths} paths between {examples} examples have "
            f"{elements:.2g} elements, {elements / 2**27:.2g} GiB in float64, more than "
            f"{MOST_KERNELS:.2g}; {remedy}"
        )


def _blocks(kernels: Array, paths: int) -> Iterator[tuple[int, Array]]:
    """Every path π with its kernels C_ππ'(x, x') with the paths π' ≤ π, (π + 1, P, P)."""
    xp = array_namespace(kernels=kernels)
    if kernels.ndim == 4:
        yield from ((path, kernels[path, : path + 1, ...]) for path in range(paths))
        return
    first = _same_path(paths)
    for path in range(paths):
        entries = from_host(first[: path + 1] + path - np.arange(path + 1), kernels, xp.int64)
        yield path, xp.matrix_transpose(xp.take(kernels, entries, axis=0))


def _full(kernels: Array, *, paths: int) -> Array:
    """Kernels of all pairs of paths in both orders, (n, n, P, P)."""
    if kernels.ndim == 4:
        return kernels
    xp, (rows, columns) = array_namespace(kernels=kernels), np.indices((paths, paths))
    upper = np.zeros((paths, paths), dtype=np.int64)
    upper[np.triu_indices(paths)] = np.arange(kernels.shape[0])
    entries = from_host(np.maximum(upper, upper.T).reshape(-1), kernels, xp.int64)
    taken = xp.take(kernels, entries, axis=0)
    is_lower = from_host((rows > columns).reshape(-1, 1, 1), kernels, xp.bool)
    taken = xp.where(is_lower, xp.matrix_transpose(taken), taken)
    return xp.reshape(taken, (paths, paths, *kernels.shape[1:]))


def _asymmetry(kernels: Array, paths: int) -> float:
    """Largest difference of entries that must be equal."""
    evaluate = compile_function(_asymmetry_of_path, array_namespace(kernels=kernels))
    # path by path: all differences would take as much memory as the kernels
    numbers = range(paths) if kernels.ndim == 4 else _same_path(paths)
    return max(float(evaluate(kernels, int(number))) for number in numbers)


def _asymmetry_of_path(kernels: Array, number: int) -> Array:
    xp = array_namespace(kernels=kernels)
    block = kernels[number, ...]
    mirror = kernels[:, number, ...] if kernels.ndim == 4 else block
    return xp.max(xp.abs(block - xp.matrix_transpose(mirror)))


def _same_path(paths: int) -> np.ndarray:
    """Indices of the pairs (π, π) among the pairs π ≤ π'."""
    return np.cumsum([0, *range(paths, 1, -1)])


def packed_kernels(kernels: Array, *, index: PairIndex) -> Array:
    """Kernels of pairs as :class:`pathkernel_core.energy.given_kernels.GivenKernels` has them."""
    xp, examples, paths = array_namespace(kernels=kernels), kernels.shape[-1], index.paths
    entries = from_host(packed_order(examples)[0], kernels, xp.int64)
    if index.outputs > 1:
        return xp.reshape(_full(kernels, paths=paths), (paths**2, -1)) / paths

    def packed() -> Iterator[Array]:
        for path, block in _blocks(kernels, paths):
            # a pair is C + Cᵀ, which would count a path with itself twice
            share = from_host(np.array([1.0] * path + [0.5]) / paths, kernels)[:, None, None]
            both = share * (block + xp.matrix_transpose(block))
            yield xp.take(xp.reshape(both, (path + 1, -1)), entries, axis=1)

    return fill_rows(packed(), paths * (paths + 1) // 2)


def _packed_branches(kernels: Array, branches: float) -> Array:
    xp = array_namespace(kernels=kernels)
    entries = from_host(packed_order(kernels.shape[-1])[0], kernels, xp.int64)
    halves = (kernels + xp.matrix_transpose(kernels)) / (2 * branches)
    return xp.take(xp.reshape(halves, (kernels.shape[0], -1)), entries, axis=1)


def _check_positive(kernels: Array, form: GivenKernels, index: PairIndex, rounding: float) -> None:
    """Raise an error if kernels are seen not to be positive semidefinite."""
    xp, examples, paths = array_namespace(kernels=kernels), kernels.shape[-1], index.paths
    if paths * examples <= EXACT_ROWS:
        matrix = to_host(compile_function(_full, xp, static=("paths",))(kernels, paths=paths))
        matrix = matrix.astype(float).transpose(0, 2, 1, 3).reshape((paths * examples,) * 2)
        values = [np.linalg.eigvalsh((matrix + matrix.T) / 2)]
    else:
        # of every mixture v_π v_π' of a positive semidefinite kernel the eigenvalues are positive:
        # a few cannot show that all are, but refuse no kernel that is
        generator = np.random.default_rng(0)
        vectors = generator.standard_normal((_PROBES, paths))
        mix = compile_function(mixed_kernel, xp)
        mixtures = []
        for v in vectors:
            weights = index.of_pairs(from_host(np.outer(v, v).reshape(1, -1), kernels), xp)
            mixtures.append(mix(form.kernels, weights, form.labels))
        # of one vector for all examples the kernel may stay positive where examples of different
        # paths were exchanged: not of a vector for each
        mix = compile_function(_mixture_of_examples, xp)
        for _ in range(_PROBES_OF_EXAMPLES):
            vectors = generator.standard_normal((paths, examples))
            mixtures.append(mix(kernels, from_host(vectors, kernels)))
        values = [to_host(xp.linalg.eigvalsh(mixture)) for mixture in mixtures]
    for eigenvalues in values:
        if eigenvalues[0] < -rounding * abs(eigenvalues[-1]):
            raise NotPositiveDefiniteError(
                f"kernels of shape {tuple(kernels.shape)} must be positive semidefinite as a "
                "matrix over pairs of path and example, but have an eigenvalue of "
                f"{eigenvalues[0]:.3g} beside one of {eigenvalues[-1]:.3g}"
            )


def _mixture_of_examples(kernels: Array, vectors: Array) -> Array:
    """Σ_ππ' v_π(x) C_ππ'(x, x') v_π'(x'), (P, P), of vectors (n, P) by path and example."""
    xp, paths = array_namespace(kernels=kernels), vectors.shape[0]
    half = None
    for path, block in _blocks(kernels, paths):
        share = from_host(np.array([1.0] * path + [0.5]), kernels)[:, None]
        along = xp.sum(block * (share * vectors[: path + 1, :])[:, None, :], axis=0)
        along = vectors[path, :][:, None] * along
        half = along if half is None else half + along
    return half + xp.matrix_transpose(half)


def check_own_kernels(own: Array, shared: bool) -> None:
    """Raise an error if kernels of new examples with themselves are seen to be none.

    Of pairs of paths they are symmetric and positive semidefinite for every example, (n, n, P_new);
    of independent branches not negative, (n, P_new).

    Raises
    ------
    ValueError, NotPositiveDefiniteError
        As :meth:`pathkernel_core.Problem.from_kernels` does.
    """
    if is_tracer(own):
        return
    xp, subject = array_namespace(own=own), f"own of shape {tuple(own.shape)}"
    if shared:
        matrices = xp.permute_dims(own, (2, 0, 1))
        _check_symmetric_matrices(matrices, subject, "C_ππ'(x, x) = C_π'π(x, x)")
        _check_positive_matrices(matrices, subject, "new example", own.shape[0] * own.shape[2])
        return
    if is_true(xp.any(own < -_rounding(own) * xp.max(own, axis=1, keepdims=True))):
        raise NotPositiveDefiniteError(
            f"{subject} has the kernels C_ll(x, x) of new examples with themselves, which cannot "
            f"be negative, but has {float(xp.min(own)):.3g}"
        )


def _rounding(kernels: Array) -> float:
    """Relative size of what may be rounding."""
    return math.sqrt(float(array_namespace(kernels=kernels).finfo(kernels.dtype).eps))


def _check_symmetric_matrices(matrices: Array, subject: str, equation: str) -> None:
    xp = array_namespace(matrices=matrices)
    deviations = xp.max(xp.abs(matrices - xp.matrix_transpose(matrices)), axis=(1, 2))
    largest = xp.max(xp.abs(matrices), axis=(1, 2))
    if is_true(xp.any(deviations > _rounding(matrices) * largest)):
        deviation = float(xp.max(deviations))
        raise ValueError(
            f"{subject} must be symmetric, {equation}, but entries differ by up to {deviation:.3g}"
        )


def _check_positive_matrices(matrices: Array, subject: str, each: str, rows: int) -> None:
    """Raise an error if matrices (B, m, m) are seen not to be positive semidefinite.

    Where all have up to a thousand rows, by eigenvalues.
    """
    xp, rounding = array_namespace(matrices=matrices), _rounding(matrices)
    if rows <= EXACT_ROWS:
        values = to_host(xp.linalg.eigvalsh(matrices))
    else:
        # vᵀCv of random vectors, and the diagonal: they cannot show that all are positive, but
        # refuse no kernel that is
        probes = np.random.default_rng(0).standard_normal((matrices.shape[1], _PROBES))
        vectors = from_host(probes, matrices)
        forms = to_host(xp.sum(vectors * matmul(matrices, vectors), axis=1))
        values = np.concatenate([forms, to_host(xp.linalg.diagonal(matrices))], axis=1)
    largest = np.abs(values).max(axis=1)
    worst = int(np.argmin(values.min(axis=1) + rounding * largest))
    if values[worst].min() < -rounding * largest[worst]:
        raise NotPositiveDefiniteError(
            f"{subject} must be positive semidefinite for every {each}, but one has an eigenvalue "
            f"of at most {values[worst].min():.3g} beside values of {largest[worst]:.3g}"
        )
