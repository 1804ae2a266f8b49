"""Damage to the folder of a study: named by check, refused or mended, never taken for values."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from folders import content, flip
from small_task import count_minimisations

from pathkernel_datasets.errors import StudyError, StudyWarning
from pathkernel_datasets.folder.check import check
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.folder.zarr_files import write_tree
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.testing import SMALL_STUDY, SmallTask
from pathkernel_datasets.variables.labelling import checksum

AS_ROOT = os.name != "posix" or os.geteuid() == 0
needs_permissions = pytest.mark.skipif(AS_ROOT, reason="root may read and write everything")
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are those of POSIX")


def run(path, study=SMALL_STUDY):
    return compute_study(study, path, analyses=())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A complete study with a result."""
    path = tmp_path_factory.mktemp("whole") / "study"
    run(path)
    write_tree(path / "spectrum.zarr", xr.Dataset({"number": ("place", np.zeros(3))}))
    assert check(path).study == ()
    return path


@pytest.fixture(scope="module")
def dataset(whole):
    """The study in memory."""
    return open_study(whole).load()


@pytest.fixture
def path(whole, tmp_path):
    """A copy of it to damage."""
    return shutil.copytree(whole, tmp_path / "study")


@pytest.mark.parametrize("file", ["notes", "a folder with a file", "an empty folder"])
def test_what_never_was_a_study(tmp_path, file):
    path = tmp_path / "study"
    if file == "notes":
        path.write_bytes(b"CDF\x01")
    else:
        path.mkdir()
    if file == "a folder with a file":
        (path / "notes").touch()
    for read in (open_study, check):
        with pytest.raises(StudyError, match="is no folder of a study"):
            read(path)
    if file != "an empty folder":
        with pytest.raises(StudyError, match=r"study( is no folder|/?.* cannot be written)"):
            run(path)
        assert content(tmp_path)


def test_what_is_missing_or_inside_a_study_is_told(path, tmp_path):
    for read in (open_study, check):
        with pytest.raises(StudyError, match=r"there is no study at .*pathkernel run"):
            read(tmp_path / "none")
        with pytest.raises(StudyError, match=rf"did you mean {path}\?"):
            read(path.with_suffix(".zarr"))
        for inside in ("study.zarr", "spectrum.zarr"):
            with pytest.raises(StudyError, match=rf"give the folder: {path}$"):
                read(path / inside)
    assert not (tmp_path / "none").exists()


def test_a_whole_study_is_found_whole(path):
    checked = check(path)
    assert (checked.study, checked.results) == ((), ())
    assert (checked.points, checked.computed) == (8, 8)
    assert run(path) == 0


def replace_by_folder(file):
    file.unlink()
    file.mkdir()


DAMAGE = {
    "deleted": Path.unlink,
    "folder": replace_by_folder,
    "emptied": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(b"\0" * 4),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "flipped": flip,
    "lost end": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
}
CHUNKS = {  # with the number of points that are computed again: those of the seed, at their widths
    "study.zarr/order_parameter/c/1/0/0/0/0": 4,
    "study.zarr/status/c/1/0/0": 4,
    "study.zarr/accuracy_gp/c/0/0/0": 0,
    "study.zarr/test_label/c/1/0/0": 0,
    "study.zarr/path/c/0": 0,
}
METADATA = ("zarr.json", "action/zarr.json", "width/zarr.json", "seed/zarr.json")
FILES = CHUNKS | {f"study.zarr/{file}": 0 for file in METADATA}

# every file and every damage in each run, all of their pairs in the slow ones
PAIRS = [
    pytest.param(file, damage, marks=[pytest.mark.slow] * ((row + column) % 6 > 0))
    for row, file in enumerate(FILES)
    for column, damage in enumerate(DAMAGE)
    if (file, damage) != ("study.zarr/zarr.json", "folder")  # an error of the system that names it
]


@pytest.mark.parametrize(("file", "damage"), PAIRS)
def test_damage_is_named_and_mended_by_the_same_command(
    whole, dataset, path, monkeypatch, file, damage
):
    DAMAGE[damage](path / file)
    line = check(path).study[0]
    name = file.split("/c/")[0].removesuffix("zarr.json").rstrip("/")
    assert line.startswith(f"{path / name} is damaged"), line
    _test_that_no_other_value_is_read(path, dataset)
    minimised = count_minimisations(monkeypatch)
    with pytest.warns(StudyWarning, match="is damaged.*computed again"):
        run(path)
    assert len(minimised) == FILES[file], "only what is damaged is computed again"
    assert content(path) == content(whole)  # in which check names no damage


def _test_that_no_other_value_is_read(path, written):
    """Reading raises an error, or gives the values that were written."""
    try:
        dataset = open_study(path).load()
    except (StudyError, RuntimeError, ValueError):  # by Zarr and its codecs
        return
    xr.testing.assert_identical(dataset, written)


@pytest.mark.parametrize("damage", [3, 400, 1007, "deleted", "emptied", "zeros", "binary"])
def test_a_damaged_description_is_mended(whole, dataset, path, monkeypatch, damage):
    if isinstance(damage, int):  # a bit; 1007 makes a byte that is no text
        flip(path / "study.json", damage)
    elif damage == "binary":
        (path / "study.json").write_bytes(bytes(range(256)))
    else:
        DAMAGE[damage](path / "study.json")
    (*lines,) = check(path).study
    assert not lines or lines == [f"{path / 'study.json'} is missing or damaged"]
    xr.testing.assert_identical(open_study(path).load(), dataset)
    minimised = count_minimisations(monkeypatch)
    assert run(path) == len(minimised) == 0
    assert content(path) == content(whole)


def test_a_description_and_metadata_that_are_both_lost(whole, path):
    """Nothing says what the values are of: they are left as they are."""
    (path / "study.json").unlink()
    flip(path / "study.zarr" / "zarr.json", 4000)
    assert check(path).study
    with pytest.raises(StudyError, match=r"study\.json is missing or unreadable; run the command"):
        open_study(path)
    with pytest.raises(StudyError, match=r"neither study\.json nor study\.zarr says which study"):
        run(path)


@pytest.mark.parametrize("file", ["path/c/0", "seed/zarr.json"])
def test_a_description_and_labels_that_are_both_lost(whole, path, monkeypatch, file):
    (path / "study.json").unlink()
    flip(path / "study.zarr" / file)
    assert len(check(path).study) == 2
    minimised = count_minimisations(monkeypatch)
    with pytest.warns(StudyWarning, match="is damaged"):
        assert run(path) == len(minimised) == 0
    assert content(path) == content(whole)


def test_a_variable_that_is_lost_with_the_metadata_of_the_root(whole, path):
    shutil.rmtree(path / "study.zarr" / "accuracy")
    flip(path / "study.zarr" / "zarr.json", 4000)
    with pytest.warns(StudyWarning, match="is damaged"):
        run(path)
    assert content(path) == content(whole)


@pytest.mark.parametrize(
    ("swapped", "name"),
    [
        (("order_parameter/c/0/0/0/0/0", "order_parameter/c/1/0/0/0/0"), "order_parameter"),
        (("energy/c/0/0/0", "entropy/c/0/0/0"), "energy"),
        (("action/zarr.json", "entropy/zarr.json"), "action"),
        (("width/zarr.json", "seed/zarr.json"), "seed"),
    ],
)
def test_files_that_are_swapped(whole, path, swapped, name):
    first, second = (path / "study.zarr" / file for file in swapped)
    content_of_first = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content_of_first)
    assert check(path).study[0].startswith(f"{path / 'study.zarr' / name} is damaged")
    with pytest.warns(StudyWarning, match="damaged"):
        run(path)
    assert content(path) == content(whole)


def test_the_values_of_another_study_are_not_taken(whole, path, tmp_path, monkeypatch):
    other = tmp_path / "other"
    run(other, Study(SmallTask(examples=14), (10,), (1.0,)))
    shutil.rmtree(path / "study.zarr")
    shutil.copytree(other / "study.zarr", path / "study.zarr")
    assert check(path).study == (f"{path / 'study.zarr'} holds another study than study.json",)
    with pytest.raises(StudyError, match=r"holds another study than .*; run the command again"):
        open_study(path)
    minimised = count_minimisations(monkeypatch)
    run(path)
    assert len(minimised) == 8
    assert content(path) == content(whole)


def test_a_part_of_the_grid_in_the_place_of_the_whole(whole, path, tmp_path, monkeypatch):
    """Such as an older copy: what it has is taken."""
    other = tmp_path / "other"
    run(other, SMALL_STUDY.on_grid({"width": (10,)}))
    shutil.rmtree(path / "study.zarr")
    shutil.copytree(other / "study.zarr", path / "study.zarr")
    assert check(path).study == (f"{path / 'study.zarr'} is on another grid than study.json",)
    so_far = open_study(path)
    assert so_far.status.sel(width=10).min() == 1
    assert (so_far.status.sel(width=100) == 0).all()
    minimised = count_minimisations(monkeypatch)
    run(path)
    assert minimised == [100] * 4
    assert content(path) == content(whole)


def test_a_study_that_is_deleted_is_computed_again(whole, path):
    shutil.rmtree(path / "study.zarr")
    assert check(path).study == (f"{path / 'study.zarr'} is missing",)
    with pytest.raises(StudyError, match=r"study\.zarr is missing; run the command again"):
        open_study(path)
    run(path)
    assert content(path) == content(whole)


def test_missing_chunks_are_not_shown_and_flipped_bits_not_read(path):
    for file in (path / "study.zarr" / "action" / "c").rglob("0"):
        if file.is_file():
            flip(file)
    with pytest.raises(ValueError, match="checksum"):
        open_study(path)["action"].load()
    (path / "study.zarr" / "action/c/1/0/0").unlink()
    with pytest.raises(StudyError, match=r"damaged: chunks of action are missing; run the command"):
        open_study(path)


def test_damage_to_a_result_is_named_as_such(path):
    flip(path / "spectrum.zarr" / "number" / "c" / "0")
    checked = check(path)
    assert checked.study == ()
    assert checked.results[0].startswith(f"{path / 'spectrum.zarr' / 'number'} is damaged")


def _describe_otherwise(path, **attributes):
    described = json.loads((path / "study.json").read_text())
    described["attributes"] |= attributes
    described["attributes"]["metadata_crc32"] = checksum(described)
    (path / "study.json").write_text(json.dumps(described))


@pytest.mark.parametrize("study", ["[]", '{"sweep": {"n": {}}, "options": {"n": ["a/../../b"]}}'])
def test_a_study_whose_values_are_no_plain_words_is_refused(path, study):
    """Names of folders are made of them."""
    _describe_otherwise(path, study=json.loads(study))
    assert check(path).study[0].startswith(f"{path / 'study.json'} is missing or damaged")


def test_another_version_of_the_files_is_refused(path):
    _describe_otherwise(path, schema_version=5)
    for use in (open_study, check, run):
        with pytest.raises(StudyError, match="schema version 5, this pathkernel reads version 7"):
            use(path)


def test_plain_xarray_opens_what_open_study_does(path, dataset):
    for consolidated in (True, False):
        plain = xr.open_zarr(path / "study.zarr", chunks=None, consolidated=consolidated)
        assert plain.data_vars.keys() == dataset.data_vars.keys()
        del plain.attrs["metadata_crc32"], plain.attrs["chunks_crc32"]
        assert plain.attrs == dataset.attrs
    tree = xr.open_datatree(path / "spectrum.zarr", engine="zarr", chunks=None)
    assert tree["number"].sum() == 0


REWRITTEN = {
    "fill values left out": lambda dataset: (dataset, {"write_empty_chunks": False}),
    "not consolidated": lambda dataset: (dataset, {"consolidated": False}),
    "one width": lambda dataset: (dataset.sel(width=[100]), {}),
    "other order": lambda dataset: (dataset.isel(width=[1, 0]), {}),
    "single precision": lambda dataset: (dataset.assign(action=dataset.action.astype("f4")), {}),
}


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("change", REWRITTEN)
def test_what_xarray_rewrote_is_never_computed_into(path, change):
    changed, settings = REWRITTEN[change](xr.open_zarr(path / "study.zarr", chunks=None).load())
    shutil.rmtree(path / "study.zarr")
    changed.to_zarr(path / "study.zarr", zarr_format=3, **settings)
    consolidated = settings.get("consolidated", True)
    plain = xr.open_zarr(path / "study.zarr", chunks=None, consolidated=consolidated)
    np.testing.assert_array_equal(plain.action, changed.action)
    assert "written by another program than pathkernel" in " ".join(check(path).study)
    before = content(path)
    with pytest.raises(StudyError, match=r"written by another program .* left as it is"):
        run(path, SMALL_STUDY.on_grid({"width": (10, 100, 30)}))
    assert content(path) == before


@needs_pipes
@pytest.mark.parametrize(
    "file", ["study.json", "study.zarr/zarr.json", "study.zarr/action/c/1/0/0", "pieces/pipe"]
)
def test_pipes_are_named_and_never_read(path, file):
    (path / file).parent.mkdir(exist_ok=True)
    (path / file).unlink(missing_ok=True)
    os.mkfifo(path / file)
    assert f"{path / file} is no plain file but a pipe" in " ".join(check(path).study)
    for use in (open_study, run):
        with pytest.raises(StudyError, match=f"{file} is no plain file but a pipe.*; remove it"):
            use(path)


@needs_pipes
def test_links_to_folders_are_refused(path):
    (path / "study.zarr" / "again").symlink_to("..")
    for use in (open_study, run):
        with pytest.raises(StudyError, match=r"a link to a folder; remove it"):
            use(path)
    assert "again is no plain file" in " ".join(check(path).study)


@needs_permissions
@pytest.mark.parametrize(
    "file",
    ["study.json", "study.zarr", "study.zarr/zarr.json", "study.zarr/action/c/1/0/0"],
)
def test_what_may_not_be_read_is_no_damage(whole, path, file):
    (path / file).chmod(0)
    try:
        for use in (check, run, lambda path: open_study(path).load()):
            with pytest.raises((PermissionError, StudyError), match=r"[Pp]ermission denied"):
                use(path)
    finally:
        (path / file).chmod(0o755)
    assert content(path) == content(whole)


@needs_permissions
@pytest.mark.parametrize("folder", ["", "study.zarr", "study.zarr/action"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(path, monkeypatch, folder):
    minimised, before = count_minimisations(monkeypatch), content(path)
    (path / ".lock").unlink()
    (path / folder).chmod(0o555)
    try:
        with pytest.raises(StudyError, match=r"cannot be written .*nothing is computed") as error:
            run(path, SMALL_STUDY.on_grid({"width": (10, 100, 30)}))
    finally:
        (path / folder).chmod(0o755)
    assert str(path / folder) in str(error.value)
    assert (minimised, content(path)) == ([], before)


@pytest.mark.parametrize("error", [ImportError("no codec"), PermissionError(13, "denied")])
def test_what_is_no_damage_is_not_called_so(path, monkeypatch, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("zarr.codecs.ZstdCodec._decode_sync", fail)
    for use in (open_study, check, run):
        with pytest.raises(type(error), match=f"{error.args[-1]}"):
            use(path)
