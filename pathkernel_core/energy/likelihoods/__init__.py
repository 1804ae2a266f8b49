"""Likelihoods by name: a file for each, and a line of the table.

They import ``arrays`` and the checks of labels. Begin with
:mod:`pathkernel_core.energy.likelihoods.likelihood`, the interface, and
:mod:`pathkernel_core.energy.likelihoods.logistic`, the pattern of a new one.
"""

from collections.abc import Mapping

from pathkernel_core.energy.likelihoods.likelihood import Likelihood
from pathkernel_core.energy.likelihoods.logistic import LOGISTIC
from pathkernel_core.energy.likelihoods.softmax import SOFTMAX
from pathkernel_core.energy.likelihoods.squared import SQUARED

LIKELIHOODS: Mapping[str, Likelihood] = {
    likelihood.name: likelihood for likelihood in (SQUARED, LOGISTIC, SOFTMAX)
}
"""Likelihoods that :class:`pathkernel_core.Problem` takes."""


def likelihood_of(name: str) -> Likelihood:
    """Return the likelihood of a name; raise a ValueError if there is none."""
    if name not in LIKELIHOODS:
        names = ", ".join(f'"{known}"' for known in LIKELIHOODS)
        raise ValueError(f"likelihood must be one of {names}, not {name!r}")
    return LIKELIHOODS[name]
