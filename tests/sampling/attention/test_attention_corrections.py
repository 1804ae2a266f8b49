"""The density of queries and keys to next order, against the expansion and against differences."""

import numpy as np
import pytest

pytest.importorskip("jax")

import pathkernel_core as pk
from pathkernel_sampling.attention.corrections import next_order_density
from pathkernel_sampling.corrections.next_order import next_order


def posterior(heads, outputs, skips, width=12, **options):
    generator = np.random.default_rng(outputs)
    inputs = generator.standard_normal((9, 5, 3))
    labels = np.sign(generator.standard_normal((9, outputs)))
    layers = [pk.QueryKey(*generator.standard_normal((2, heads[0], 2, 3)), scale=0.5)]
    layers += [pk.KeyVectors(generator.standard_normal((count, 3))) for count in heads[1:]]
    network = pk.Network(heads, width, (0.8, *[1.3] * len(heads), 0.9), outputs, skips)
    return pk.AttentionPosterior(
        inputs, labels, layers, network, 0.3, tolerance=1e-10, readout="mean", **options
    )


@pytest.mark.parametrize(
    ("heads", "outputs", "skips"),
    [
        ((2,), 1, None),
        pytest.param((2, 1), 1, (None, 0.7), marks=pytest.mark.slow),
        pytest.param((1, 2), 2, None, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_gradient_is_that_of_differences(heads, outputs, skips):
    of_heads = posterior(heads, outputs, skips)
    generator = np.random.default_rng(3)
    position, direction = generator.standard_normal((2, of_heads.dimension))
    here = next_order_density(of_heads, position)
    assert here.log_evidence == pytest.approx(next_order(here.solution).next_log_evidence, rel=1e-9)
    leading = of_heads.evaluate(position)
    assert here.log_density - leading.log_density == pytest.approx(
        here.log_evidence - leading.log_evidence, rel=1e-9
    )

    def along(step):
        solution = of_heads.solve(position + step * direction, here.solution)
        correction = next_order(solution).log_evidence_correction
        return of_heads.evaluate(position + step * direction).log_density + correction

    step = 1e-3
    slope = 8 * (along(step) - along(-step)) - (along(2 * step) - along(-2 * step))
    assert here.gradient @ direction == pytest.approx(slope / (12 * step), rel=1e-7, abs=1e-7)
    assert here.gradient @ direction != pytest.approx(leading.gradient @ direction, rel=1e-4)


def test_there_is_no_expansion_in_the_limit():
    of_heads = posterior((2,), 1, None, width=np.inf)
    with pytest.raises(ValueError, match=r"is infinite|must be a converged"):
        next_order_density(of_heads, of_heads.start)
