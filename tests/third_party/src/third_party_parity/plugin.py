"""Tells pathkernel about the task, the analysis, the sampler and the result."""

from pathkernel_core.hooks import hookimpl
from third_party_parity.analysis import Participation
from third_party_parity.result import Spectrum
from third_party_parity.sampler import Rescaled
from third_party_parity.task import ThirdPartyParity


@hookimpl
def pathkernel_tasks():
    """Tasks of this distribution."""
    return [ThirdPartyParity]


@hookimpl
def pathkernel_analyses():
    """Analyses of this distribution."""
    return [Participation()]


@hookimpl
def pathkernel_samplers():
    """Samplers of this distribution."""
    return [Rescaled()]


@hookimpl
def pathkernel_results():
    """Results of this distribution."""
    return [Spectrum]
