"""The analysis: on how many paths does the order parameter live?"""

import numpy as np

import pathkernel as pk


class Participation(pk.plugins.Analysis):
    """Participation ratio of the diagonal of U, from 1 to the number of paths."""

    name = "third-party-participation"
    summary = "Number of paths that the order parameter lives on"
    variables = (
        pk.plugins.Variable("participation", (), "participation ratio of the diagonal of U"),
    )

    def coordinates(self, situation):
        """A number has no dimensions."""
        return {}

    def compute(self, situation):
        """The ratio (Σ u)² / Σ u²."""
        diagonal = np.diagonal(pk.plugins.to_host(situation.solution.order_parameter))
        return {"participation": diagonal.sum() ** 2 / (diagonal**2).sum()}
