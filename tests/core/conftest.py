"""Networks with several layers, unequal heads, different widths and variances, several outputs."""

import numpy as np
import pytest

from pathkernel_core import Network

NETWORKS = {  # heads, widths, variances, outputs
    "one layer": ((3,), (7, 5), (0.5, 1.5, 0.8)),
    "one path": ((1,), (7, 5)),
    "two layers": ((2, 3), (9, 14, 11), (0.7, 1.3, 0.6, 1.9)),
    "three layers, two outputs": ((2, 1, 2), (8, 12, 10, 15), (1.1, 0.8, 1.2, 0.9, 1.4), 2),
    "one layer, three outputs": ((2,), (6, 9), (0.5, 1.5, 0.8), 3),
}


# JAX compiles anew for each: it has the largest, and the one that has nothing to compile for
FEWER_ON_JAX = ("one layer", "two layers", "one layer, three outputs")


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.slow_on_jax(network=FEWER_ON_JAX)) for name in NETWORKS
    ]
)
def network(request):
    return Network(*NETWORKS[request.param])


@pytest.fixture
def generator():
    return np.random.default_rng(20240529)
