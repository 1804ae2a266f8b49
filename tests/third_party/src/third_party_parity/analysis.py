"""The analysis: on how many paths does the order parameter live?"""

import numpy as np

from pathkernel_core.analysis import Analysis, Variable
from pathkernel_core.backend import to_host


class Participation(Analysis):
    """Participation ratio of the diagonal of U, from 1 to the number of paths."""

    name = "third-party-participation"
    summary = "Number of paths that the order parameter lives on"
    variables = (Variable("participation", (), "participation ratio of the diagonal of U"),)

    def coordinates(self, situation):
        """A number has no dimensions."""
        return {}

    def compute(self, situation):
        """The ratio (Σ u)² / Σ u²."""
        diagonal = np.diagonal(to_host(situation.solution.order_parameter))
        return {"participation": diagonal.sum() ** 2 / (diagonal**2).sum()}
