"""Tells pathkernel about the task."""

from pathkernel_core.hooks import hookimpl
from third_party_parity.task import ThirdPartyParity


@hookimpl
def pathkernel_tasks():
    """Tasks of this distribution."""
    return [ThirdPartyParity]
