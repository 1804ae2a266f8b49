"""Examples in docstrings of studies and of live models; those of the core are tested with it."""

import doctest
import importlib

import pytest

MODULES = [
    "pathkernel_datasets.folder.reading",
    "pathkernel_datasets.results.run_result",
    "pathkernel_datasets.run.run_study",
    "pathkernel_datasets.selection.gains",
    "pathkernel_capture.capture",
    "pathkernel_pruning.live.comparison",
    "pathkernel_pruning.live.removal",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    if name.startswith(("pathkernel_capture", "pathkernel_pruning")):
        pytest.importorskip("torch", reason="capture is of PyTorch models")
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert results.attempted
    assert not results.failed
