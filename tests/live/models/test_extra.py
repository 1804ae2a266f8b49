"""What a user is told without PyTorch."""

import sys

import pytest

from pathkernel_core.system.errors import MissingExtraError


def test_without_torch(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pathkernel_capture"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r'live model needs torch, .*"pathkernel\[torch\]"'):
        import pathkernel_capture  # noqa: F401
