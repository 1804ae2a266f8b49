"""Twenty examples, of which one head out of two tells the label: silent if its prior is small."""

import numpy as np

import pathkernel_core as pk
from pathkernel_core.phases.coexistence import ActionFamily
from pathkernel_core.phases.curves import Stops

WIDTH = 20


def problem(scale=0.1, labels=1.0):
    xi = np.random.default_rng(3).normal(size=(20, 2, 4))
    return pk.Problem(scale * xi, labels * np.sign(xi[:, 0, 0]))


def along_variance(temperature, **settings):
    """Actions over the prior variance alone."""
    return ActionFamily(
        problem(**settings), lambda values: (pk.Network((2,), WIDTH, values[0]), temperature)
    )


def over_the_plane(**settings):
    """Actions over the prior variance and the temperature."""
    return ActionFamily(
        problem(**settings),
        lambda values: (pk.Network((2,), WIDTH, values[0]), float(values[1])),
    )


def minima(family, *values):
    """Lowest minima at two points, each with one value or several."""
    return [family.search(np.log(np.atleast_1d(value))) for value in values]


PLANE = Stops(
    np.log([0.005, 0.001]), np.log([5.0, 0.5]), (np.log([0.1, 0.2]), np.log([0.003, 0.01]))
)
