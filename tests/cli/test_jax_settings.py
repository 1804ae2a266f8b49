"""What commands settle before JAX is imported."""

import os
from pathlib import Path

import pytest

from pathkernel import jax_settings
from pathkernel.jax_settings import prepare_jax


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """An environment of its own, with a cache folder."""
    own = {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    monkeypatch.setattr(os, "environ", own)
    return own


def test_what_is_compiled_is_kept_for_processors_of_a_kind(environment, tmp_path, monkeypatch):
    prepare_jax()
    assert environment["JAX_ENABLE_X64"] == environment["OMP_NUM_THREADS"] == "1"
    assert "multi_thread_eigen=false" in environment["XLA_FLAGS"]
    folder = Path(environment.pop("JAX_COMPILATION_CACHE_DIR"))
    assert folder.is_dir()
    assert tmp_path in folder.parents
    monkeypatch.setattr(jax_settings, "_processor", lambda: "flags: fpu sse of another machine")
    prepare_jax()
    assert Path(environment["JAX_COMPILATION_CACHE_DIR"]) != folder


def test_what_the_user_says_stands(environment):
    said = {
        "JAX_COMPILATION_CACHE_DIR": "",
        "JAX_ENABLE_X64": "0",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=true",
    }
    environment |= said
    prepare_jax()
    assert {name: environment[name] for name in said} == said
    assert "JAX_COMPILATION_CACHE_MAX_SIZE" not in environment


@pytest.mark.parametrize(("given", "level"), [(None, "INFO"), ("--a --b", "WARNING")])
def test_flags_that_are_left_out_are_logged(environment, monkeypatch, caplog, given, level):
    """Ours at a level that nobody sees unasked, the user's as a warning."""
    monkeypatch.setattr(jax_settings, "remembered_flags", lambda flags, _: ("--a", ["--b"]))
    monkeypatch.setattr(jax_settings, "refusal", " ".join)
    if given:
        environment["XLA_FLAGS"] = given
    with caplog.at_level("INFO", "pathkernel"):
        prepare_jax()
    assert environment["XLA_FLAGS"] == "--a"
    assert [(record.levelname, record.message) for record in caplog.records] == [(level, "--b")]


def test_without_a_cache_folder_nothing_is_kept(environment, tmp_path):
    (tmp_path / "pathkernel").write_text("no folder")
    prepare_jax(threads=3)
    assert "JAX_COMPILATION_CACHE_DIR" not in environment
    assert "XLA_FLAGS" not in environment
    assert environment["OMP_NUM_THREADS"] == "3"
