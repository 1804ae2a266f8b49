"""Average-case learning curve of kernel regression, from the spectrum of the kernel.

The mean predictor at fixed U is kernel ridge regression with the kernel K(U) and the ridge T. Over
draws of P training examples its squared error concentrates at

    E = Σ_k a_k² κ²/(κ + Pλ_k)² / (1 − γ),      γ = Σ_k P λ_k²/(κ + Pλ_k)²,
    κ = T + κ Σ_k λ_k/(κ + Pλ_k),

where λ_k are the eigenvalues of the kernel over the distribution of examples and a_k the labels'
coefficients along its eigenfunctions.

Reference: Canatar, Bordelon, Pehlevan, Nature Communications 12, 2914 (2021).
"""

from __future__ import annotations

import numpy as np
import scipy


def kernel_spectrum(kernel: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Estimate eigenvalues of a kernel over a distribution, and the labels' powers along them.

    Parameters
    ----------
    kernel : array, shape (M, M)
        Kernel between M examples of the distribution.
    labels : array, shape (M,)

    Returns
    -------
    eigenvalues, powers : arrays, shape (M,)
        λ_k and a_k²; the powers add up to the mean squared label.
    """
    eigenvalues, vectors = scipy.linalg.eigh(kernel)
    powers = (vectors.T @ labels) ** 2 / len(labels)
    return np.maximum(eigenvalues, 0.0) / len(labels), powers


def feature_spectrum(
    gram: np.ndarray, projections: np.ndarray, label_square: float
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the same as :func:`kernel_spectrum`, from means over more examples than features.

    Parameters
    ----------
    gram : array, shape (D, D)
        Mean of φφᵀ over the distribution, for features φ whose products are the kernel.
    projections : array, shape (D,)
        Mean of φy.
    label_square : float
        Mean of y².

    Returns
    -------
    eigenvalues, powers : arrays, shape (D + 1,)
        λ_k and a_k²; the last is the part of the labels that no feature explains, with λ = 0.
    """
    eigenvalues, vectors = scipy.linalg.eigh(gram)
    # a power is a squared projection over its eigenvalue: rounding over rounding where that is zero
    is_zero = eigenvalues <= len(gram) * np.finfo(float).eps * eigenvalues[-1]
    powers = (vectors.T @ projections) ** 2 / np.where(is_zero, 1.0, eigenvalues)
    powers[is_zero] = 0.0
    return (
        np.append(np.where(is_zero, 0.0, eigenvalues), 0.0),
        np.append(powers, max(label_square - powers.sum(), 0.0)),
    )


def average_case_error(
    eigenvalues: np.ndarray, powers: np.ndarray, examples: int, temperature: float
) -> float:
    """Return the mean squared error on new examples, averaged over training sets.

    Parameters
    ----------
    eigenvalues, powers : arrays, shape (K,)
        λ_k and a_k², see :func:`kernel_spectrum`.
    examples : int
        Number P of training examples.
    temperature : float
        Positive ridge T.
    """

    def excess(kappa: float) -> float:
        return kappa - temperature - kappa * (eigenvalues / (kappa + examples * eigenvalues)).sum()

    # κ = T + Σ κλ/(κ + Pλ) ≤ T + Σ λ, the sum growing with κ
    kappa = scipy.optimize.brentq(
        excess, temperature, temperature + eigenvalues.sum(), xtol=1e-14, rtol=1e-12
    )
    # filters are the shares of the modes that P examples do not teach; 1/(1 − γ) diverges at the
    # interpolation threshold as T → 0 (double descent)
    filters = kappa / (kappa + examples * eigenvalues)
    gamma = examples * ((eigenvalues * filters / kappa) ** 2).sum()
    return float((powers * filters**2).sum() / (1 - gamma))
