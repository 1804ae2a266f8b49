"""Flags of the compiler are asked for before they are set."""

import importlib.metadata
import importlib.util

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathkernel import compiler_flags
from pathkernel.compiler_flags import accepted_flags, remembered_flags


def test_what_the_installed_compiler_knows_is_accepted():
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    assert accepted_flags(flags) == (flags, [])


@pytest.fixture
def compiler(monkeypatch):
    """A process in place of the compiler, which ends with an error at ``--unknown``."""
    script = "import os, sys; sys.exit('--unknown' in os.environ['XLA_FLAGS'])"
    monkeypatch.setattr(compiler_flags, "_START", script)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")


def test_a_flag_at_which_the_compiler_ends_is_left_out(compiler):
    assert accepted_flags("--unknown=1 --a plain=1") == ("--a plain=1", ["--unknown=1"])
    assert accepted_flags("--unknown=1") == ("", ["--unknown=1"])


@pytest.fixture
def asked(monkeypatch):
    """Words that a made-up compiler knows, and the questions that it was asked."""
    known, questions = {"--a", "--b=1", "--c=no"}, []

    def starts_with(flags):
        questions.append(flags)
        return {word for word in flags.split() if word.startswith("-")} <= known

    monkeypatch.setattr(compiler_flags, "_starts_with", starts_with)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    return known, questions


@settings(max_examples=100)
@given(words=st.lists(st.sampled_from(["--a", "--b=1", "--c=no", "--d", "--e=2", "plain=1"])))
def test_whatever_is_unknown_is_left_out_and_nothing_else(words, asked):
    known, _ = asked
    accepted, refused = accepted_flags(" ".join(["--a", *words]))
    unknown = [word for word in words if word.startswith("-") and word not in known]
    assert refused == unknown
    assert accepted.split() == ["--a", *(word for word in words if word not in unknown)]


def test_a_compiler_that_never_starts_keeps_its_flags(asked, monkeypatch):
    """Whoever imports JAX then sees why."""
    monkeypatch.setattr(compiler_flags, "_starts_with", lambda flags: False)
    assert accepted_flags("--a --d") == ("--a --d", [])


def test_files_of_flags_and_machines_without_jax_are_left_alone(asked, monkeypatch):
    assert accepted_flags("flags.txt") == ("flags.txt", [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert accepted_flags("--d") == ("--d", [])
    assert asked[1] == []


def test_a_compiler_is_asked_once(asked, tmp_path, monkeypatch):
    answers = [remembered_flags("--a --d", tmp_path) for _ in range(2)]
    assert answers == [("--a", ["--d"])] * 2
    first = len(asked[1])
    assert first == 4  # all, each, and those that are left
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.1")
    remembered_flags("--a --d", tmp_path)
    assert len(asked[1]) == 2 * first
    assert remembered_flags("--a --d", tmp_path / "missing") == ("--a", ["--d"])


def test_a_refused_flag_is_told_with_the_version(compiler, invoke, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--unknown --a")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    status, out, _ = invoke("--version")
    assert status == 0
    left_out = "left out of XLA_FLAGS, unknown to jaxlib 1.0: --unknown"
    assert out.splitlines()[-1] == f"XLA_FLAGS: --a; {left_out}"
