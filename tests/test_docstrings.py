"""Examples in docstrings of studies and of live models; those of the core are tested with it."""

import doctest
import importlib

import pytest

STUDIES = (
    "pathkernel_datasets.run.run_study",
    "pathkernel_datasets.folder.reading",
    "pathkernel_datasets.selection.finite_width_gain",
    "pathkernel_datasets.results.run_result",
)
MODELS = (
    "pathkernel_capture.capture",
    "pathkernel_pruning.live.removal",
    "pathkernel_pruning.live.comparison",
)


@pytest.mark.parametrize("name", [*STUDIES, *MODELS])
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    if name in MODELS:
        pytest.importorskip("torch", reason="live models are of PyTorch")
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert results.attempted
    assert not results.failed
