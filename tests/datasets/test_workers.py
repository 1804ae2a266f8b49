"""Studies that workers compute: the same stores, and what is said where a worker fails."""

import multiprocessing
import os
import pickle
import queue
import shutil
import signal
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import zarr

from pathkernel_core.attention import AttentionProduct
from pathkernel_core.task import Examples, Realisation, Task, option
from pathkernel_datasets import pieces
from pathkernel_datasets.check import check
from pathkernel_datasets.errors import StoreError, TaskError
from pathkernel_datasets.groups import part_writer, sole_writer
from pathkernel_datasets.lock import sole, turn
from pathkernel_datasets.pieces import Piece, compute_pieces, draws_of, pieces_of
from pathkernel_datasets.store import Store
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import _batches, compute_study, run_study
from pathkernel_datasets.workers import cluster, processes


@dataclass(frozen=True)
class Signs(Task):
    """Signs of random inputs, drawn by this process only."""

    name: ClassVar[str] = "signs"
    summary: ClassVar[str] = "Signs of random inputs"
    widths: ClassVar[tuple[float, ...]] = (5, 50)
    temperatures: ClassVar[tuple[float, ...]] = (0.1, 1.0)

    elsewhere: str = option("drawn", "what happens in another process", choices=("drawn", "killed"))
    examples: int = option(6, "training examples")
    mark: str = option("", "file without which another process is killed, which makes it")

    def realise(self, seed):
        away = multiprocessing.parent_process() is not None
        if away and self.elsewhere == "killed" and seed == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if away and self.mark and not os.path.exists(self.mark):
            open(self.mark, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if away and self.examples == 7:
            raise ArithmeticError("there is no seventh")
        generator = np.random.default_rng(seed)
        heads = AttentionProduct(generator.standard_normal((2, 3, 3)))
        inputs = generator.standard_normal((self.examples, 4, 3))
        examples = Examples(inputs, np.sign(inputs.sum(axis=(1, 2))))
        return Realisation([heads], "mean", examples, {"test": examples})


class Pickling(ThreadPoolExecutor):
    """Workers in this process, which get copies as those elsewhere do."""

    def submit(self, function, /, *arguments):
        return super().submit(*pickle.loads(pickle.dumps((function, *arguments))))


def study(**options):
    return Study(Signs(**options), seeds=(3, 4))


def content(path):
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def near(tmp_path_factory):
    """What one process makes."""
    path = tmp_path_factory.mktemp("near") / "near.zarr"
    compute_study(study(), path)
    return path


@pytest.mark.parametrize("workers", [Pickling, processes])
def test_the_store_is_that_of_one_process(near, tmp_path, workers):
    seen = []
    with workers(2) as executor:
        run_study(study(), tmp_path / "far.zarr", executor=executor, report=seen.append)
        assert compute_study(study(), tmp_path / "far.zarr", executor=executor) == 0
    assert content(tmp_path / "far.zarr") == content(near)
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


def test_a_worker_gets_whole_draws_where_each_has_as_many():
    def lengths(seeds, workers):
        found = _batches(pieces_of(Study(Signs(), seeds=range(seeds))), workers)
        assert [piece.words for batch in found for piece in batch] == [
            piece.words for piece in pieces_of(Study(Signs(), seeds=range(seeds)))
        ]
        return list(map(len, found))

    assert lengths(5, 2) == [3] * 4 + [1] * 3
    assert lengths(1, 2) == lengths(1, 0) == [1] * 3
    begun = pieces_of(Study(Signs(), seeds=range(3)))[1:]
    assert list(map(len, _batches(begun, 2))) == [3, 3, 1, 1], "one is begun"


def test_a_piece_of_another_study_is_not_written(tmp_path):
    """As one would be that comes late, when the store has grown or is another."""
    path = tmp_path / "near.zarr"
    compute_study(study(), path, analyses=())
    before = content(path)
    (draw, _) = draws_of(study())
    with pytest.raises(StoreError, match="holds another study by now"):
        compute_pieces([Piece(draw, 0)], path, "{}", (), 1)
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


def test_what_a_worker_raises_is_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    with processes(1) as executor:
        assert executor.submit(os.getenv, "CUDA_VISIBLE_DEVICES").result() == "5"
        with pytest.raises(TaskError, match=r"cannot draw seed 3.*no seventh"):
            compute_study(study(examples=7), tmp_path / "far.zarr", executor=executor)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("task_versions", "a worker has another version of the code than .*install the same"),
        ("fingerprint", "a worker draws other data than the study was begun with"),
    ],
)
def test_a_worker_of_other_code_is_refused(near, tmp_path, monkeypatch, name, words):
    path = shutil.copytree(near, tmp_path / "near.zarr")
    Store(path)._mark("status", (0, 0, 0), 0)
    pieces._last_drawn.cache_clear()
    monkeypatch.setattr(pieces, name, lambda _: {"pathkernel": "another"})
    with Pickling(1) as executor, pytest.raises(StoreError, match=words):
        compute_study(study(), path, executor=executor)
    assert Store(path).marker("status")[0, 0, 0] == 0


def test_what_cannot_be_sent_is_named(tmp_path):
    class Local(Signs):
        name = "local"

    with (
        processes(1) as executor,
        pytest.raises(TaskError, match=r"the task 'local' cannot be sent to workers.*in a module"),
    ):
        compute_study(Study(Local()), tmp_path / "far.zarr", executor=executor)


def test_parts_that_run_at_the_same_time_make_the_same_store(near, tmp_path):
    path = tmp_path / "far.zarr"
    seen = {number: [] for number in (1, 2, 3)}
    with ThreadPoolExecutor(3) as pool:
        computed = pool.map(
            lambda number: compute_study(
                study(), path, part=(number, 3), report=seen[number].append
            ),
            seen,
        )
        assert sum(computed) == 8
    assert content(path) == content(near)
    assert sum(reports[-1].total for reports in seen.values()) == 8
    assert all(reports[-1].done == reports[-1].total for reports in seen.values())
    assert compute_study(study(), path, part=(2, 3)) == 0


def test_a_part_that_waits_says_so_and_a_check_waits_too(tmp_path):
    path, told = tmp_path / "far.zarr", queue.SimpleQueue()
    with ThreadPoolExecutor(2) as pool:
        with turn(path), sole(path):
            late = pool.submit(compute_study, study(), path, part=(1, 1), report=told.put)
            assert told.get(timeout=60).doing.startswith("waiting for another part of")
        assert late.result() == 8
        with turn(path), sole(path):  # as a part that begins holds both for a moment
            found = pool.submit(check, path)
            with pytest.raises(TimeoutError):
                found.result(timeout=0.2)
        assert found.result().computed == 8


def test_a_part_has_the_same_pieces_whatever_is_computed():
    whole = pieces_of(study())
    parts = [pieces_of(study(), (number, 4)) for number in (1, 2, 3, 4)]
    assert [piece.words for part in parts for piece in part] == [piece.words for piece in whole]
    assert {len(part) for part in parts} == {1, 2}
    assert pieces_of(study(), (7, 7)) == whole[-1:] == parts[-1][-1:]


def test_a_part_that_was_killed_goes_on_beside_another(near, tmp_path):
    path, dead = tmp_path / "far.zarr", study(elsewhere="killed")
    with processes(1) as executor, pytest.raises(BrokenExecutor):
        executor.submit(compute_study, dead, path, part=(2, 2)).result()
    left, writing = path / "action" / "c.1.partial", path / "action" / "c.2.partial"
    left.write_bytes(b"")  # of the part that was killed
    with part_writer(path, (1, 2)) as (alone, let_others_in):
        assert alone
        assert not left.exists()
        let_others_in()
        writing.write_bytes(b"")
        compute_study(dead, path, part=(2, 2))
        assert writing.exists()
        with pytest.raises(StoreError, match=r"computed in parts \(1 of 2\)"):
            compute_study(dead, path)
        with pytest.raises(StoreError, match="computed in parts"):
            check(path)
        with pytest.raises(StoreError, match="is writing into part 1 of 2 of"):
            compute_study(dead, path, part=(1, 2))
        with pytest.raises(StoreError, match=r"in parts \(1 of 2\), not in 3"):
            compute_study(dead, path, part=(3, 3))
        with pytest.raises(StoreError, match="computed on another grid"):
            compute_study(dead.on_grid({"width": (70,)}), path, part=(2, 2))
    assert not writing.exists()
    with sole_writer(path), pytest.raises(StoreError, match="another process is writing into /"):
        compute_study(dead, path, part=(1, 2))
    assert compute_study(dead, path, part=(1, 2)) == 4
    compute_study(dead, tmp_path / "near.zarr")
    assert content(path) == content(tmp_path / "near.zarr")
    with pytest.raises(ValueError, match=r"as \(1, 3\), not \(3, 2\)"):
        compute_study(dead, path, part=(3, 2))


def test_dask_gives_the_work_of_a_killed_worker_to_another(tmp_path):
    distributed = pytest.importorskip("distributed")
    asked = study(mark=str(tmp_path / "mark"))
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, protocol="tcp://"
        ) as dask,
        cluster(dask.scheduler_address) as executor,
    ):
        assert compute_study(asked, tmp_path / "far.zarr", executor=executor) == 8
    assert (tmp_path / "mark").exists(), "a worker was killed"
    compute_study(asked, tmp_path / "near.zarr")
    assert content(tmp_path / "far.zarr") == content(tmp_path / "near.zarr")
