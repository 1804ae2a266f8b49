"""How much memory there is, and what is refused because it would not fit."""

import os

import pytest
from small_task import Small

from pathkernel_core.system import memory
from pathkernel_core.system.memory import bytes_in_words, check_memory, memory_bound
from pathkernel_datasets.study import prepared
from pathkernel_datasets.study.prepared import array_library, prepare_data
from pathkernel_datasets.study.study import Study
from pathkernel_tasks.hidden_markov import HiddenMarkov


def test_bound_is_half_the_memory(monkeypatch):
    pages = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__, raising=False)
    assert memory_bound() == 2_048_000
    pages["SC_PHYS_PAGES"] = -1
    assert memory_bound() == 8 * 2**30
    monkeypatch.delattr(os, "sysconf")
    assert memory_bound() == 8 * 2**30


@pytest.mark.parametrize(
    ("size", "words"),
    [(3, "3 bytes"), (2500, "2.5 kB"), (7.45e6, "7.5 MB"), (1e9, "1 GB"), (512e9, "512 GB")],
)
def test_bytes_in_words(size, words):
    assert bytes_in_words(size) == words


def test_what_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "memory_bound", lambda: 1000)
    check_memory("it", 1000, "take less")
    with pytest.raises(ValueError, match=r"^it would take 1 kB of memory, .*, 1 kB; take less$"):
        check_memory("it", 1001, "take less")


def test_studies_that_do_not_fit_are_refused_before_anything_is_computed(monkeypatch):
    monkeypatch.setattr(prepared, "attentioned_inputs", lambda *_: pytest.fail("computed"))
    monkeypatch.setattr(memory, "memory_bound", lambda: 3743)
    with pytest.raises(ValueError, match=r"26 examples .* along 6 paths would take 3\.7 kB"):
        prepare_data(Study(Small()), 0, array_library("numpy", "float64"))
    monkeypatch.setattr(memory, "memory_bound", lambda: 3744)
    with pytest.raises(ValueError, match="the minimisation over 6 paths and 2 outputs"):
        prepare_data(Study(Small(outputs=2)), 0, array_library("numpy", "float64"))


def test_chains_that_do_not_fit_are_not_drawn(monkeypatch):
    monkeypatch.setattr(memory, "memory_bound", lambda: 10**9)
    with pytest.raises(ValueError, match=r"100 and 1000000 chains would take .* GB of memory"):
        HiddenMarkov(test_examples=1_000_000).realise(0)
