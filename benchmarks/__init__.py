"""Benchmarks: run from the root of the repository, see README.md here.

Libraries read their number of threads when they are loaded, so it is set before any of them.
"""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("JAX_ENABLE_X64", "1")

from pathkernel.compiler_flags import accepted_flags  # noqa: E402
from pathkernel.jax_settings import ONE_CORE  # noqa: E402

os.environ["XLA_FLAGS"], _ = accepted_flags(os.environ.get("XLA_FLAGS", ONE_CORE))
