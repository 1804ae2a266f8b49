"""Studies that workers compute: the same stores, and what is said where a worker fails."""

import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import zarr

from pathkernel_core.attention import AttentionProduct
from pathkernel_core.task import Examples, Realisation, Task, option
from pathkernel_datasets.errors import StoreError, TaskError
from pathkernel_datasets.pieces import Piece, compute_piece, draws_of
from pathkernel_datasets.store import Store
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import compute_study, run_study
from pathkernel_datasets.workers import processes


@dataclass(frozen=True)
class Signs(Task):
    """Signs of random inputs, drawn by this process only."""

    name: ClassVar[str] = "signs"
    summary: ClassVar[str] = "Signs of random inputs"
    widths: ClassVar[tuple[float, ...]] = (5, 50)
    temperatures: ClassVar[tuple[float, ...]] = (0.1, 1.0)

    elsewhere: str = option("drawn", "what happens in another process", choices=("drawn", "killed"))
    examples: int = option(6, "training examples")

    def realise(self, seed):
        away = multiprocessing.parent_process() is not None
        if away and self.elsewhere == "killed" and seed == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if away and self.examples == 7:
            raise ArithmeticError("there is no seventh")
        generator = np.random.default_rng(seed)
        heads = AttentionProduct(generator.standard_normal((2, 3, 3)))
        inputs = generator.standard_normal((self.examples, 4, 3))
        examples = Examples(inputs, np.sign(inputs.sum(axis=(1, 2))))
        return Realisation([heads], "mean", examples, {"test": examples})


def study(**options):
    return Study(Signs(**options), seeds=(3, 4))


def content(path):
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.mark.parametrize("workers", [ThreadPoolExecutor, processes])
def test_the_store_is_that_of_one_process(tmp_path, workers):
    seen = []
    with workers(2) as executor:
        run_study(study(), tmp_path / "far.zarr", executor=executor, report=seen.append)
        assert compute_study(study(), tmp_path / "far.zarr", executor=executor) == 0
    compute_study(study(), tmp_path / "near.zarr")
    assert content(tmp_path / "far.zarr") == content(tmp_path / "near.zarr")
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert (seen[-1].done, seen[-1].total) == (8, 8)
    assert not zarr.config.get("array.write_empty_chunks")  # threads leave no setting behind


def test_a_store_that_lacks_something_is_completed(tmp_path):
    for name, workers in (("far", ThreadPoolExecutor(2)), ("near", None)):
        path = tmp_path / f"{name}.zarr"
        compute_study(study().on_grid({"width": (5,), "seed": (4,)}), path)
        Store(path)._mark("status", (0, 1, 0), 0)  # as if stopped there
        assert compute_study(study(), path, executor=workers) == 7
    assert content(tmp_path / "far.zarr") == content(tmp_path / "near.zarr")


def test_a_piece_of_another_study_is_not_written(tmp_path):
    """As one would be that comes late, when the store has grown or is another."""
    path = tmp_path / "near.zarr"
    compute_study(study(), path, analyses=())
    before = content(path)
    (draw, _) = draws_of(study())
    with pytest.raises(StoreError, match="holds another study by now"):
        compute_piece(path, Piece(draw, 0), "{}", (), 1)
    assert content(path) == before


def test_a_killed_worker_is_told_and_the_same_command_goes_on(tmp_path):
    path = tmp_path / "far.zarr"
    with (
        processes(2) as executor,
        pytest.raises(StoreError, match=r"a worker ended.*fewer workers"),
    ):
        compute_study(study(elsewhere="killed"), path, executor=executor)
    compute_study(study(elsewhere="killed"), path)
    compute_study(study(elsewhere="killed"), tmp_path / "near.zarr")
    assert content(path) == content(tmp_path / "near.zarr")


def test_what_a_worker_raises_is_raised(tmp_path):
    with (
        processes(1) as executor,
        pytest.raises(TaskError, match=r"cannot draw seed 3.*no seventh"),
    ):
        compute_study(study(examples=7), tmp_path / "far.zarr", executor=executor)
