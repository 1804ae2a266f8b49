"""Results of a study: computed part by part, stored beside it, and mended."""

import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import xarray as xr
from folders import content, flip, kill, names

from pathkernel_core.contracts.hooks import PluginError
from pathkernel_core.contracts.options import option
from pathkernel_core.contracts.result import Result
from pathkernel_core.system.progress import Progress
from pathkernel_datasets.errors import StudyError, StudyWarning
from pathkernel_datasets.folder.check import check
from pathkernel_datasets.folder.piece_files import write_arrays
from pathkernel_datasets.results import run_result as module
from pathkernel_datasets.results.draws import block_file, read_blocks
from pathkernel_datasets.results.result_files import publish_parts, write_part
from pathkernel_datasets.results.run_result import _publish, run_result
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.testing import SmallTask

TINY = Study(SmallTask(), (10,), (1.0,), (0,))
TWO = Study(SmallTask(), (10,), (1.0,), (0,), sweep={"variance": (0.5, 1.0)})


@dataclass(frozen=True)
class Parts(Result):
    """Parts, one of which may fail."""

    name = "parts"
    summary = "Parts of a result"

    fail_at: int = option(-1, "part that fails")

    def compute(self, study, report):
        for number in range(3):
            if number == self.fail_at:
                raise RuntimeError("as asked")
            if not study.holds(f"{self.name}/of/{number}"):
                report(Progress(number, 3, "counting"))
                values = xr.DataArray([float(number)], dims="n", attrs={"long_name": "number"})
                yield f"of/{number}", xr.Dataset({"number": values})


@dataclass(frozen=True)
class Single(Result):
    """One dataset, computed once."""

    name = "single"
    summary = "One dataset"

    def compute(self, study, report):
        if not study.holds(self.name):
            report(Progress(0, 1, f"computing {study.label}".strip()))
            count = len(study.singles)
            yield "", xr.Dataset({"number": ("n", [count], {"long_name": "number"})})


class Joint(Single):
    name = "joint"
    of_all_values = True


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study to look at."""
    path = tmp_path_factory.mktemp("whole") / "study"
    compute_study(TINY, path, analyses=())
    return path


@pytest.fixture(scope="module")
def computed(whole, tmp_path_factory):
    """The same with a result."""
    path = shutil.copytree(whole, tmp_path_factory.mktemp("computed") / "study")
    run_result(Parts(), path)
    assert check(path).results == ()
    return path


@pytest.fixture
def path(whole, tmp_path):
    """A study to write into."""
    return shutil.copytree(whole, tmp_path / "study")


def counted(result, path):
    """Numbers of the parts that were computed."""
    seen = []
    run_result(result, path, report=seen.append)
    return [progress.done for progress in seen if progress.doing == "counting"]


def test_parts_stand_in_one_zarr_beside_the_study(computed):
    assert names(computed) == [".lock", "parts.zarr", "study.json", "study.zarr"]
    study = StoredStudy(computed)
    assert study.results == ["parts"]
    assert study.parts("parts") == [f"parts/of/{number}" for number in range(3)]
    tree = xr.open_datatree(computed / "parts.zarr", engine="zarr", chunks=None)
    assert [float(tree[f"of/{number}/number"][0]) for number in range(3)] == [0, 1, 2]
    assert float(study.result("parts/of/1")["number"][0]) == 1
    assert study.result("parts")["of/1"].number == 1
    assert counted(Parts(), computed) == []


def test_parts_that_are_done_outlast_an_error(path, computed):
    message = (
        "the result 'parts' cannot be computed: RuntimeError: as asked. Its own code raised this, "
        f"class {__name__}.Parts"
    )
    with pytest.raises(PluginError, match=message):
        run_result(Parts(fail_at=2), path)
    stored = StoredStudy(path)
    assert [stored.holds(f"parts/of/{number}") for number in range(3)] == [True, True, False]
    assert counted(Parts(), path) == [2], "what is there is not computed again"
    assert content(path) == content(computed)


class Careless(Single):
    name = "careless"

    def compute(self, study, report):
        np.zeros(3) + np.zeros(4)


class Refusing(Single):
    name = "refusing"

    def compute(self, study, report):
        raise ValueError("one width is too few")
        yield


def test_a_mistake_is_named_and_a_refusal_told_as_the_result_says_it(path):
    with pytest.raises(PluginError, match=r"'careless' .*: ValueError: operands .*\.Careless$"):
        run_result(Careless(), path)
    with pytest.raises(ValueError, match=r"^one width is too few$"):
        run_result(Refusing(), path)


@pytest.mark.parametrize("steps", [(2, 9, 16, 25), pytest.param(range(45), marks=pytest.mark.slow)])
def test_a_result_that_is_killed_before_any_step_is_resumed(path, computed, steps):
    for step in steps:
        if kill(step, lambda: run_result(Parts(), path, report=lambda progress: None)):
            break
        study = StoredStudy(path)
        for part in study.parts("parts"):
            assert float(study.result(part)["number"][0]) == int(part[-1])
        assert check(path).results == ()
    run_result(Parts(), path)
    assert content(path) == content(computed)
    assert names(path) == names(computed)


def test_parts_of_a_killed_process_are_published_by_the_next(path, computed, monkeypatch):
    def killed(path, name):
        if (path / "pieces").exists():
            raise KeyboardInterrupt
        return []

    with monkeypatch.context() as patch:
        patch.setattr(module, "publish_parts", killed)
        with pytest.raises(KeyboardInterrupt):
            run_result(Parts(), path)
    study = StoredStudy(path)
    assert (study.results, study.parts("parts")) == (["parts"], []), "it is being computed"
    monkeypatch.setattr(Parts, "compute", lambda self, study, report: iter(()))
    run_result(Parts(), path)
    assert content(path) == content(computed)


DAMAGE = {  # with the parts that are computed again
    "of/1/number/c/0": (lambda file: file.write_bytes(b"damage"), [1]),
    "of/2/number/zarr.json": (flip, [2]),
    "of/0/zarr.json": (lambda file: file.write_bytes(b""), [0]),
    "of/zarr.json": (lambda file: file.write_bytes(b"{"), []),
    "zarr.json": (lambda file: file.write_bytes(b'{"attributes"; {}}'), []),
    "of/1": (shutil.rmtree, [1]),
    "of/2/number": (shutil.rmtree, [2]),
}


@pytest.mark.parametrize("file", DAMAGE)
def test_a_damaged_part_is_computed_again(computed, tmp_path, file):
    path, (change, again) = shutil.copytree(computed, tmp_path / "study"), DAMAGE[file]
    change(path / "parts.zarr" / file)
    checked = check(path)
    assert checked.study == ()
    assert str(path / "parts.zarr") in checked.results[0]
    with pytest.warns(StudyWarning, match=r"parts\.zarr.* is damaged"):
        assert counted(Parts(), path) == again
    assert content(path) == content(computed)  # in which check names no damage


def test_reading_damage_is_refused(computed, tmp_path):
    path = shutil.copytree(computed, tmp_path / "study")
    (path / "parts.zarr/of/1/number/c/0").unlink()
    with pytest.raises(StudyError, match=r"chunks of of/1/number are missing.*result again"):
        StoredStudy(path).result("parts")
    assert float(StoredStudy(path).result("parts/of/2")["number"][0]) == 2
    shutil.rmtree(path / "parts.zarr")
    assert counted(Parts(), path) == [0, 1, 2]
    with pytest.raises(StudyError, match="has no single; its results are: parts"):
        StoredStudy(path).result("single")


def test_results_of_single_values_and_of_all(tmp_path):
    path, seen = tmp_path / "study", []
    compute_study(TWO, path, analyses=())
    run_result(Single(), path, report=seen.append)
    labels = ["prior variance σ² 0.5", "prior variance σ² 1"]
    assert [progress.doing for progress in seen] == [f"computing {label}" for label in labels]
    run_result(Joint(), path)
    study = StoredStudy(path)
    assert study.results == ["joint", "single"]
    assert study.result("joint").number == 2
    assert [single.label for single in study.singles] == labels
    assert [single.result("single").number for single in study.singles] == [1, 1]
    assert (path / "variance-1.0" / "single.zarr").exists()
    assert check(path).results == ()
    flip(path / "variance-1.0" / "single.zarr" / "number" / "c" / "0", 80)
    assert "variance-1.0/single.zarr/number is damaged" in check(path).results[0]
    with pytest.warns(StudyWarning, match=r"variance-1\.0/single\.zarr/number is damaged"):
        run_result(Single(), path)
    assert check(path).results == ()
    assert run_and_count(TWO, path) == 0, "results change no study"


def run_and_count(study, path):
    return compute_study(study, path, analyses=())


def test_results_of_a_study_that_is_not_complete_or_damaged_are_refused(path):
    flip(path / "study.zarr/action/c/0/0/0")
    with pytest.raises(StudyError, match=r"study\.zarr/action is damaged .*run the command again"):
        run_result(Parts(), path)
    with pytest.warns(StudyWarning, match="damaged"):
        assert run_and_count(TINY, path) == 1
    compute_study(TINY.on_grid({"seed": (0, 3)}), path, analyses=(), part=(1, 2))
    with pytest.raises(StudyError, match=r"is not complete: .*command again that computes"):
        run_result(Parts(), path)
    assert "parts.zarr" not in names(path)


def test_a_study_keeps_its_results_when_it_grows(computed, tmp_path):
    path = shutil.copytree(computed, tmp_path / "study")
    assert run_and_count(TINY.on_grid({"seed": (0, 3)}), path) == 1
    assert counted(Parts(), path) == []


def test_a_result_cannot_be_named_as_the_study(whole):
    @dataclass(frozen=True)
    class Taken(Parts):
        name = "study"

    with pytest.raises(PluginError, match="has the name of the study itself"):
        run_result(Taken(), whole)


@pytest.mark.parametrize("given", [None, 3, {"a": 1.0}, [("a", {})], ["a"]])
def test_what_is_no_labelled_data_is_refused(whole, given):
    @dataclass(frozen=True)
    class Other(Parts):
        name = "other"

        def compute(self, study, report):
            return given

    with pytest.raises(PluginError, match=r"compute\(\) of the result 'other' gave a \w+; it must"):
        run_result(Other(), whole)
    assert StoredStudy(whole).results == []


def test_blocks_of_draws_outlast_all_but_the_publishing_of_their_part(path):
    """Those of a part that is published go; those of others stay."""
    study = StoredStudy(path)
    block = {"settings": "{}", "posterior/order_parameter": np.zeros((2, 3, 4, 4))}
    for part in ("parts/of/0", "parts/of/9"):
        write_arrays(block_file(study, part, 0), block, study.core)
        write_arrays(block_file(study, part, 3), block, study.core)
    assert len(read_blocks(study, "parts/of/9", 0)) == 2
    run_result(Parts(), path)
    assert read_blocks(study, "parts/of/0", 0) == []
    assert len(read_blocks(study, "parts/of/9", 0)) == 2
    file = block_file(study, "parts/of/9", 3)
    file.write_bytes(file.read_bytes()[:-1])
    assert check(path).results == (f"{file} is damaged",)
    with pytest.warns(StudyWarning, match=r"3\.npz is damaged"):
        assert len(read_blocks(study, "parts/of/9", 0)) == 1


def test_blocks_that_another_process_adds_outlast_the_publishing_of_fewer_draws(path):
    study, part = StoredStudy(path), "samples/order-parameter/seed-0_T-1_N-10"
    block = {"settings": "{}", "posterior/order_parameter": np.zeros((2, 3, 4, 4))}
    for first in (0, 3):
        write_arrays(block_file(study, part, first), block, study.core)
    (block_file(study, part, 0).parent / ".0.npz.0123abcd.partial").touch()
    drawn = xr.Dataset({"order_parameter": (("chain", "draw"), np.zeros((2, 3)))})
    run = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"settings": "{}"}), "posterior": drawn})
    write_part(path, part, run)
    _publish(study, "samples")
    assert names(block_file(study, part, 0).parent) == ["3.npz"]
    assert len(read_blocks(study, part, 3)) == 1


def test_a_part_that_is_half_removed_is_not_taken_for_a_newer_one(path, computed, monkeypatch):
    """A process is killed while it removes a part that it has published."""

    def killed(part):
        part.rename(part.with_name(f".{part.name}.0123abcd.partial"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pathkernel_datasets.results.result_files.remove_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            run_result(Parts(), path)
    assert list(path.rglob(".*.partial")), "it is removed aside"
    run_result(Parts(), path)
    run_result(Parts(), path)
    assert {name for name in content(path) if "parts.zarr" in name} == {
        name for name in content(computed) if "parts.zarr" in name
    }
    assert check(path).results == ()


def test_damaged_parts_that_are_not_asked_for_are_named_when_they_go(computed, tmp_path):
    path = shutil.copytree(computed, tmp_path / "study")
    flip(path / "parts.zarr" / "of" / "1" / "zarr.json")
    write_part(path, "parts/of/3", xr.Dataset({"number": ("n", [3.0], {"long_name": "n"})}))
    with pytest.warns(StudyWarning, match=r"of/1 was damaged, and is removed"):
        publish_parts(path, "parts")
    assert StoredStudy(path).parts("parts") == ["parts/of/0", "parts/of/2", "parts/of/3"]


def test_runs_leave_results_alone_that_are_being_written(path):
    partial = path / "pieces" / ".single.zarr.0123abcd.partial"
    partial.mkdir(parents=True)
    (partial / "zarr.json").touch()
    compute_study(TINY.on_grid({"width": (10, 20)}), path, analyses=())
    assert names(path / "pieces") == [".single.zarr.0123abcd.partial"]


def test_results_are_read_below_a_folder_named_pieces(computed, tmp_path):
    path = shutil.copytree(computed, tmp_path / "pieces" / "study")
    flip(path / "parts.zarr" / "of" / "1" / "zarr.json")
    assert check(path).results


def test_what_a_failed_removal_left_is_named_and_removed(path, computed, monkeypatch):
    run_result(Parts(), path)
    left = path / ".parts.zarr.0123456789ab.partial"
    shutil.copytree(path / "parts.zarr", left)
    (line,) = check(path).results
    assert line == f"{left} was left by a command that failed; run it again, which removes it"
    run_result(Parts(), path)
    assert check(path).results == ()
    assert names(path) == names(computed)
