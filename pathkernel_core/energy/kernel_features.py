"""Features with given kernels of pairs of paths, for what takes attentioned inputs."""

from __future__ import annotations

import math

import numpy as np
import scipy


class KernelFeatures:
    """Vectors ξ along the paths with given kernels, C_ππ'(x, x') = ξ^π(x)·ξ^π'(x')/D.

    They take the place of attentioned inputs: training examples have all kernels among each other,
    and a new example those with the training examples and with itself. The vectors of two new
    examples do not have the kernel of the two.

    Parameters
    ----------
    kernels : NumPy array, shape (n, n, P, P)
        Kernels of the training examples, symmetric and positive semidefinite to rounding.

    Attributes
    ----------
    training : NumPy array, shape (P, n, D)
        ξ of the training examples. D is the rank of the kernels, at most n·P, plus n.
    """

    def __init__(self, kernels: np.ndarray):
        paths, _, examples, _ = kernels.shape
        matrix = _rows(kernels).reshape(examples * paths, examples * paths)
        # what rounding leaves of exact zeros must not become features
        smallest = len(matrix) * np.finfo(matrix.dtype).eps * matrix.diagonal().max()
        matrix = matrix.astype(float)
        lower, pivots, rank, _ = scipy.linalg.lapack.dpstrf(matrix, tol=smallest, lower=1)
        self._pivots = pivots[:rank] - 1
        self._root = np.tril(lower[:rank, :rank])
        self.width = rank + paths
        self.training = np.zeros((examples * paths, self.width))
        self.training[pivots - 1, :rank] = np.tril(lower)[:, :rank]
        self.training = self.training.reshape(examples, paths, -1) * math.sqrt(self.width)

    def new(self, cross: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Vectors ξ (P*, n, D) of new examples.

        Parameters
        ----------
        cross : NumPy array, shape (n, n, P*, P)
            Kernels C(x*, x) with the training examples.
        own : NumPy array, shape (n, n, P*)
            Kernels C(x*, x*) of every new example with itself.
        """
        paths, _, examples, _ = cross.shape
        across = _rows(cross).reshape(examples * paths, -1)[:, self._pivots].astype(float)
        explained = scipy.linalg.solve_triangular(self._root, across.T, lower=True).T
        explained = explained.reshape(examples, paths, -1)
        # what the training examples do not explain: n more features, which those do not have
        rest = own.transpose(2, 0, 1) - explained @ explained.transpose(0, 2, 1)
        values, vectors = np.linalg.eigh((rest + rest.transpose(0, 2, 1)) / 2)
        rest = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        return np.concatenate([explained, rest], axis=2) * math.sqrt(self.width)


def _rows(kernels: np.ndarray) -> np.ndarray:
    """Kernels (n, n, P, P') as (P, n, P', n)."""
    return kernels.transpose(2, 0, 3, 1)
