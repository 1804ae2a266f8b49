"""Studies that workers compute: the same stores, and what is said where a worker fails."""

import json
import multiprocessing
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import zarr
from folders import content
from pickling_workers import Pickling

from pathkernel_core.contracts.task import Examples, Realisation, Task, option
from pathkernel_core.paths.layers import AttentionProduct
from pathkernel_datasets.errors import StudyError, TaskError
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.folder.study_folder import StudyFolder
from pathkernel_datasets.run import computing
from pathkernel_datasets.run import run_study as run_study_module
from pathkernel_datasets.run.run_study import compute_study, run_study
from pathkernel_datasets.run.workers import cluster, processes
from pathkernel_datasets.study.identity import identity_of
from pathkernel_datasets.study.study import Study


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


def jobs_of(asked, path):
    """All pieces of a study in a folder, as they are sent to workers."""
    folder = StudyFolder(path, json.dumps(identity_of(asked), sort_keys=True))
    return [(computing.Computation(folder, asked, ()), piece) for piece in folder.pieces]


def study(**options):
    return Study(Signs(**options), seeds=(3, 4))


@pytest.fixture(scope="module")
def near(tmp_path_factory):
    """What one process makes."""
    path = tmp_path_factory.mktemp("near") / "near"
    compute_study(study(), path)
    return path


@pytest.mark.parametrize("pool", [Pickling, processes])
def test_the_store_is_that_of_one_process(near, tmp_path, pool):
    seen = []
    with pool(2) as executor:
        run_study(study(), tmp_path / "far", executor=executor, report=seen.append)
        assert compute_study(study(), tmp_path / "far", executor=executor) == 0
    assert content(tmp_path / "far") == content(near)
    assert (seen[-1].done, seen[-1].total) == (8, 8)
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert not zarr.config.get("array.write_empty_chunks")  # threads leave no setting behind


def test_a_worker_gets_whole_seeds_where_each_has_as_many():
    def lengths(seeds, workers):
        jobs = jobs_of(Study(Signs(), seeds=range(seeds)), "far")
        batches = computing._batches(jobs, workers)
        assert [job for batch in batches for job in batch] == jobs
        return list(map(len, batches))

    assert lengths(5, 2) == [3] * 4 + [1] * 3
    assert lengths(1, 2) == lengths(1, 0) == [1] * 3


def test_workers_do_nothing_where_another_process_has_published(near, tmp_path):
    path = shutil.copytree(near, tmp_path / "far")
    asked = study()
    computing._compute_batch(jobs_of(asked, path))
    assert content(path) == content(near)


def test_a_worker_of_other_code_is_refused(tmp_path, monkeypatch):
    computing._worker_data.cache_clear()
    identity_of = computing.identity_of

    def other(*given):
        return identity_of(*given) | {"versions": {"pathkernel": "another"}}

    monkeypatch.setattr(computing, "identity_of", other)
    path = tmp_path / "far"
    with Pickling(1) as executor, pytest.raises(StudyError, match=r"a worker \"another\"\); inst"):
        compute_study(study(), path, executor=executor)
    assert (open_study(path).status.sel(seed=3) == 0).all()


def test_a_killed_worker_is_told_and_the_same_command_goes_on(tmp_path):
    path = tmp_path / "far"
    with (
        processes(2) as executor,
        pytest.raises(StudyError, match=r"a worker was killed.*fewer workers"),
    ):
        compute_study(study(elsewhere="killed"), path, executor=executor)
    compute_study(study(elsewhere="killed"), path)
    compute_study(study(elsewhere="killed"), tmp_path / "near")
    assert content(path) == content(tmp_path / "near")


def test_what_a_worker_raises_is_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    with processes(1) as executor:
        assert executor.submit(os.getenv, "CUDA_VISIBLE_DEVICES").result() == "5"
        with pytest.raises(TaskError, match=r"cannot draw seed 3.*no seventh"):
            compute_study(study(examples=7), tmp_path / "far", executor=executor)


def test_what_cannot_be_sent_is_named(tmp_path):
    class Local(Signs):
        name = "local"

    with (
        processes(1) as executor,
        pytest.raises(
            TaskError, match=r"the task 'local' .* cannot be sent to workers.*in a module"
        ),
    ):
        compute_study(Study(Local()), tmp_path / "far", executor=executor)


def test_parts_that_run_at_the_same_time_make_the_same_store(near, tmp_path):
    path = tmp_path / "far"
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
    assert compute_study(study(), path, part=(2, 3)) == 0
    with pytest.raises(ValueError, match=r"as \(1, 3\), not \(3, 2\)"):
        compute_study(study(), path, part=(3, 2))


def test_the_part_that_completes_a_study_publishes_it(near, tmp_path):
    path = tmp_path / "far"
    for number in (2, 1):
        assert not (path / "study.zarr").exists()
        assert compute_study(study(), path, part=(number, 2)) == 4
        assert int((open_study(path).status != 0).sum()) == (4 if number == 2 else 8)
        assert (path / "pieces").exists() == (number == 2)
    assert content(path) == content(near)


def test_a_part_has_the_same_pieces_whatever_is_computed():
    jobs = jobs_of(study(), "far")
    parts = [run_study_module._part(jobs, (number, 4)) for number in (1, 2, 3, 4)]
    assert [job for part in parts for job in part] == jobs
    assert {len(part) for part in parts} == {1, 2}
    assert run_study_module._part(jobs, (7, 7)) == jobs[-1:] == parts[-1][-1:]


def test_dask_gives_the_work_of_a_killed_worker_to_another(tmp_path):
    distributed = pytest.importorskip("distributed")
    asked = study(mark=str(tmp_path / "mark"))
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, protocol="tcp://"
        ) as dask,
        cluster(dask.scheduler_address) as executor,
    ):
        assert compute_study(asked, tmp_path / "far", executor=executor) == 8
    assert (tmp_path / "mark").exists(), "a worker was killed"
    compute_study(asked, tmp_path / "near")
    assert content(tmp_path / "far") == content(tmp_path / "near")


def test_a_lost_scheduler_is_told_in_one_line(caplog):
    distributed = pytest.importorskip("distributed")
    import dask

    def lose_scheduler():
        with cluster(lost.scheduler_address) as executor:
            lost.close()
            list(executor.map(abs, [1, 2]))

    here = {"n_workers": 1, "processes": False, "dashboard_address": None, "protocol": "tcp://"}
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        distributed.LocalCluster(**here) as lost,
        pytest.raises(StudyError, match=r"Dask scheduler at tcp://.* is lost .*to resume"),
    ):
        lose_scheduler()
    assert not [record for record in caplog.records if record.exc_info]
