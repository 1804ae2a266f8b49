"""Surfaces of a map: linear functions exactly, and a jump at a crossing without smear."""

import numpy as np
import pandas as pd
import pytest

from pathkernel_phases.surface import CELLS, surface

AXES = np.geomspace(0.01, 1.0, 4), np.geomspace(1.0, 100.0, 5)
CENTRES = (np.arange(CELLS) + 0.5) / CELLS


def shares(values):
    return (np.log(values) - np.log(values[0])) / np.log(values[-1] / values[0])


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_linear_function_is_interpolated_exactly(logarithmic):
    def function(first, second):
        value = 1 + 2 * first - second
        return np.exp(value) if logarithmic else value

    values = function(shares(AXES[0])[:, None], shares(AXES[1])[None])
    result = surface(AXES, values, [], logarithmic)
    np.testing.assert_allclose(result, function(CENTRES[:, None], CENTRES[None]), rtol=1e-9)


def test_a_jump_is_not_smeared():
    """Zero left of an oblique crossing that goes up, one right of it."""
    first = np.geomspace(0.03, 0.2, 6)
    crossing = pd.DataFrame(
        {"first": first, "second": np.geomspace(1.0, 100.0, 6), "left": 0.0, "right": 1.0}
    )

    def is_right(first_share, second_share):
        start, end = (np.log(v / 0.01) / np.log(100) for v in (first[0], first[-1]))
        return (first_share > start + (end - start) * second_share).astype(float)

    values = is_right(shares(AXES[0])[:, None], shares(AXES[1])[None])
    result = surface(AXES, values, [crossing])
    np.testing.assert_allclose(result, is_right(CENTRES[:, None], CENTRES[None]), atol=1e-9)


def test_points_without_a_value_take_that_of_the_nearest():
    values = np.ones((4, 5))
    values[0] = np.nan
    np.testing.assert_allclose(surface(AXES, values, []), 1.0)
    assert np.isnan(surface(AXES, np.full((4, 5), np.nan), [])).all()
