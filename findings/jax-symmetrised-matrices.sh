#!/usr/bin/env bash
# A matrix of which only the lower triangle is stored has other factors in JAX 0.10.2 than in NumPy:
# numpy.linalg reads the lower triangle, jax.numpy.linalg takes the mean of the matrix and its
# transpose, which halves the entries below the diagonal. Both give a plausible positive definite
# answer without a word. Fill the upper triangle before either.
#
# Seen with JAX 0.10.2 on a CPU, NumPy 2.4.6, Python 3.11: Cholesky factors and eigenvalues. Fails if
# the two libraries agree, or JAX does otherwise than by the mean.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet jax==0.10.2 numpy==2.4.6
cd "$folder"
cat >factor.py <<'PYTHON'
import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import numpy as np

whole = np.array([[4.0, 2.0], [2.0, 3.0]])
lower = np.tril(whole)
mean = (lower + lower.T) / 2
for name in ("cholesky", "eigvalsh"):
    by_numpy = getattr(np.linalg, name)(lower)
    by_jax = np.asarray(getattr(jnp.linalg, name)(jnp.asarray(lower)))
    print(f"{name}: NumPy {by_numpy.tolist()}, JAX {by_jax.tolist()}")
    np.testing.assert_allclose(by_numpy, getattr(np.linalg, name)(whole), rtol=1e-12)
    np.testing.assert_allclose(by_jax, getattr(np.linalg, name)(mean), rtol=1e-12)
    assert not np.allclose(by_numpy, by_jax)
PYTHON
environment/bin/python factor.py
