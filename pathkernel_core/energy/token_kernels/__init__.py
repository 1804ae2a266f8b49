"""Kernels of tokens by name: a file for each, and a line of the table.

It imports ``arrays`` alone. Begin with :mod:`pathkernel_core.energy.token_kernels.relu`, the
pattern of a new one, which :func:`pathkernel.plugins.check_kernel` tests.
"""

from collections.abc import Mapping

from pathkernel_core.energy.token_kernels.erf import ERF
from pathkernel_core.energy.token_kernels.linear import LINEAR
from pathkernel_core.energy.token_kernels.relu import RELU
from pathkernel_core.energy.token_kernels.token_kernel import TokenKernel

TOKEN_KERNELS: Mapping[str, TokenKernel] = {
    "linear": LINEAR,
    "relu": RELU,
    "erf": ERF,
}
"""Kernels that :func:`pathkernel_core.path_kernels` and the option ``--token-kernel`` take."""
