"""Solutions around which the next order in 1/N is refused, or takes infinite widths."""

import math

import numpy as np
import pytest

import pathkernel_core as pk

for library in ("jax", "blackjax", "arviz_stats"):
    pytest.importorskip(library)

from pathkernel_sampling.corrections.next_order import next_order
from pathkernel_sampling.models.models import build_model


@pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")
def test_a_ring_of_minima_is_refused():
    labels = np.sign(np.random.default_rng(0).normal(size=24))
    xi = np.zeros((24, 2, 2))
    xi[:, 0, 0] = xi[:, 1, 1] = 0.05 * labels
    solution = pk.minimise_action(pk.Problem(xi, labels), pk.Network((1, 2), 6), 0.1)
    with pytest.raises(ValueError, match="flat along a direction"):
        next_order(solution)


def test_infinite_widths_are_the_limit_or_refused():
    rng = np.random.default_rng(0)
    xi = rng.normal(size=(12, 2, 3))
    labels = np.sign(xi[:, 0, 0])
    problem = pk.Problem(xi, labels)

    def corrected(widths):
        return next_order(pk.minimise_action(problem, pk.Network((2,), widths), 0.1))

    limit, wide = corrected((9, math.inf)), corrected((9, 1e6))
    assert limit.next_log_evidence == pytest.approx(wide.next_log_evidence, abs=1e-3)
    np.testing.assert_allclose(limit.mean_order_parameter, wide.mean_order_parameter, atol=1e-3)
    with pytest.raises(ValueError, match="N_1 is infinite"):
        corrected((math.inf, 9))
    for name in ("order-parameter", "collapsed", "weights"):
        with pytest.raises(ValueError, match="widths must be finite to be sampled"):
            build_model(name, xi, labels, pk.Network((2,), (9, math.inf)), 0.1)
