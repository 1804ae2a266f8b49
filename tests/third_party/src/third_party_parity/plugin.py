"""Tells pathkernel about the task, the analysis, the sampler and the result."""

import pathkernel as pk
from third_party_parity.analysis import Participation
from third_party_parity.result import Spectrum
from third_party_parity.sampler import Rescaled
from third_party_parity.task import ThirdPartyParity


@pk.plugins.hookimpl
def pathkernel_tasks():
    """Tasks of this distribution."""
    return [ThirdPartyParity]


@pk.plugins.hookimpl
def pathkernel_analyses():
    """Analyses of this distribution."""
    return [Participation()]


@pk.plugins.hookimpl
def pathkernel_samplers():
    """Samplers of this distribution."""
    return [Rescaled()]


@pk.plugins.hookimpl
def pathkernel_results():
    """Results of this distribution."""
    return [Spectrum]
