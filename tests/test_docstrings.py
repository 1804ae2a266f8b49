"""Examples in docstrings of studies and of live models; those of the core are tested with it."""

import doctest
import importlib

import pytest

STUDIES = ("run_study", "reading", "gains", "run_result")
MODELS = ("capture", "removal", "comparison")
MODULES = [f"pathkernel_datasets.{name}" for name in STUDIES]
MODULES += [f"pathkernel_capture.{name}" for name in MODELS]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    if name.startswith("pathkernel_capture"):
        pytest.importorskip("torch", reason="capture is of PyTorch models")
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert results.attempted
    assert not results.failed
