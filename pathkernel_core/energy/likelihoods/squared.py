"""Squared loss at a temperature: the Gaussian likelihood of the paper."""

from __future__ import annotations

import math

from pathkernel_core.arrays.backend import Array
from pathkernel_core.arrays.scalars import positive
from pathkernel_core.energy.likelihoods.likelihood import Likelihood
from pathkernel_core.energy.statistics import check_labels


class Squared(Likelihood):
    """Labels y = f + noise of variance T, the temperature; every form of the energy is closed."""

    name = "squared"
    is_gaussian = True
    constant = math.log(2 * math.pi)

    def temperature(self, temperature: float | None) -> float:
        """Check that a temperature is given and positive."""
        if temperature is None:
            raise ValueError(
                "temperature is missing: the squared loss needs one, such as temperature=0.01"
            )
        return positive("temperature", temperature)

    def targets(self, labels: Array, name: str, array: Array, examples: int) -> Array:
        """Check real labels (P,) or (P, C)."""
        return check_labels(labels, name, array, examples)

    def search_temperature(self, temperature: float, outputs: int) -> float:
        """Return the temperature itself."""
        return temperature

    def search_labels(self, targets: Array) -> Array:
        """Return the labels themselves."""
        return targets


SQUARED = Squared()
