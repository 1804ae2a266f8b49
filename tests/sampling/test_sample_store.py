"""A run's groups in a study's store: written whole, found again, seen by every reader."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from pathkernel_datasets.groups import folder_beside, sole_writer
from pathkernel_datasets.point import Point
from pathkernel_datasets.store import Store, StoreError, check_store, open_store
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import run_study
from pathkernel_sampling.sample_store import SampleStore, group_name, open_samples, runs
from pathkernel_tasks.hidden_markov import HiddenMarkov

CHAINS, THIN = 2, 5
GROUP = group_name("order-parameter", Point(width=10, temperature=0.01, seed=0))
SETTINGS = {"sampler": "order-parameter", "chains": CHAINS, "warm_up": 20, "thin": THIN}
DIMS = {
    "order_parameter": ("path", "path_dual"),
    "predictor_mean": ("test_set", "example"),
    "predictor_variance": ("test_set", "example"),
}


class Killed(BaseException):
    """As little to be caught as a signal."""


def block(first, count):
    """Values that tell draw and chain."""
    generator = np.random.default_rng(first)
    draws, rounds = (CHAINS, count), (CHAINS, count // THIN)
    return {
        "posterior": {"order_parameter": generator.normal(size=(*draws, 4, 4))},
        "predictions": {
            "predictor_mean": generator.normal(size=(*rounds, 1, 20)),
            "predictor_variance": generator.random((*rounds, 1, 20)),
        },
        "sample_stats": {
            "energy": generator.normal(size=draws),
            "diverging": generator.random(draws) < 0.1,
        },
    }


def states(draws):
    return [
        {"position": np.full(3, draws + 0.5 * chain), "step_size": np.array(0.1 * (chain + 1))}
        for chain in range(CHAINS)
    ]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("original") / "study.zarr"
    run_study(Study(HiddenMarkov(examples=10, test_examples=20), [10]), path)
    return path


@pytest.fixture
def study(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "study.zarr"))


@pytest.fixture(scope="module")
def sampled(original, tmp_path_factory):
    """A study with a run of ten draws."""
    path = Path(shutil.copytree(original, tmp_path_factory.mktemp("sampled") / "study.zarr"))
    create(path).append(block(0, 10), states(10), 2.0)
    return path


@pytest.fixture
def begun(sampled, tmp_path):
    """That run, to go on with."""
    return SampleStore(Path(shutil.copytree(sampled, tmp_path / "study.zarr")), GROUP)


def create(path, group=GROUP):
    coordinates = open_store(path)
    labels = np.repeat([1.0, -1.0], 5)
    return SampleStore.create(
        path, group, SETTINGS, {}, coordinates, DIMS, block(0, THIN), labels, states(0), 1.5
    )


def test_group_names_tell_points_apart():
    assert GROUP == "samples/order-parameter/seed-0_T-0.01_N-10"
    assert (
        group_name("weights", Point(width=1000, temperature=0.123456789, seed=3))
        == "samples/weights/seed-3_T-0.123456789_N-1000"
    )


def test_the_study_is_left_as_it_is(study):
    with xr.open_zarr(study, chunks=None) as dataset:
        before = dataset.load()
    identity = check_store(study)
    create(study).append(block(0, 10), states(10), 2.0)
    assert check_store(study) == identity
    xr.testing.assert_identical(open_store(study).load(), before)
    assert (Store.resume(study, identity, identity).marker("status") != 0).all()


def test_every_reader_sees_draws_labelled_and_without_a_warning(sampled):
    study = sampled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = xr.open_zarr(study, group=f"{GROUP}/posterior", chunks=None)
        whole = xr.open_datatree(study, engine="zarr", chunks=None)
        run = open_samples(study, GROUP)
    assert posterior["order_parameter"].dims == ("chain", "draw", "path", "path_dual")
    assert posterior["order_parameter"].attrs == {"long_name": "order parameter U", "units": "1"}
    assert set(posterior.coords) >= {"chain", "draw", "path", "path_dual", "path_layer_1"}
    assert list(posterior["path"].values) == list(open_store(study)["path"].values)
    np.testing.assert_array_equal(
        posterior["order_parameter"], block(0, 10)["posterior"]["order_parameter"]
    )
    assert whole[f"{GROUP}/predictions"].sizes == {
        **whole[f"{GROUP}/predictions"].sizes, "chain": 2, "draw": 2, "example": 20
    }  # fmt: skip
    assert list(run["predictions"]["draw"].values) == [4, 9], "the draws they were taken at"
    assert run["observed_data"]["label"].dims == ("observation",)
    for group in run.children.values():
        for name, variable in group.variables.items():
            assert variable.attrs.get("long_name"), f"{group.name}/{name}"


def test_a_reader_sees_whole_blocks_while_the_run_goes_on(study, monkeypatch):
    store = create(study)
    assert open_samples(study, GROUP)["posterior"].sizes["draw"] == 0
    store.append(block(0, 10), states(10), 2.0)
    writes = []

    def look(self, array, region, values):
        writes.append(array.name)
        array[region] = values
        tree = open_samples(study, GROUP)
        assert tree["posterior"].sizes["draw"] == 10
        assert not tree["posterior"]["order_parameter"].isnull().any()

    monkeypatch.setattr(SampleStore, "_put", look)
    store.append(block(10, 5), states(15), 3.0)
    assert writes[-1].endswith("draws_done"), "the marker comes last"
    assert open_samples(study, GROUP)["posterior"].sizes["draw"] == 15


def number_of_writes():
    return 5 + 3 + 2 + 3  # variables, draw coordinates, states, slot and marker


@pytest.mark.parametrize("kept", range(number_of_writes()))
def test_killed_after_any_write_goes_on_from_the_last_block(begun, monkeypatch, kept):
    study = begun.path
    put, count = SampleStore._put, [0]

    def fail(self, array, region, values):
        if count[0] == kept:
            raise Killed
        count[0] += 1
        put(self, array, region, values)

    monkeypatch.setattr(SampleStore, "_put", fail)
    with pytest.raises(Killed):
        begun.append(block(10, 5), states(15), 3.0)
    monkeypatch.undo()
    resumed = SampleStore.resume(study, GROUP, SETTINGS)
    assert resumed.draws_done == 10
    for expected, found in zip(states(10), resumed.states(), strict=True):
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
    assert resumed.seconds == 2.0
    assert open_samples(study, GROUP)["sample_stats"].sizes["draw"] == 10
    resumed.append(block(10, 5), states(15), 3.0)
    for group, name in (("posterior", "order_parameter"), ("sample_stats", "diverging")):
        expected = [block(0, 10)[group][name], block(10, 5)[group][name]]
        np.testing.assert_array_equal(resumed.read(group, name), np.concatenate(expected, axis=1))


def test_killed_after_the_marker_the_block_counts(study, monkeypatch):
    store = create(study)

    def fail(self):
        raise Killed

    monkeypatch.setattr(SampleStore, "publish", fail)
    with pytest.raises(Killed):
        store.append(block(0, 10), states(10), 2.0)
    monkeypatch.undo()
    assert open_samples(study, GROUP)["posterior"].sizes["draw"] == 0
    assert SampleStore.resume(study, GROUP, SETTINGS).draws_done == 10
    assert open_samples(study, GROUP)["posterior"].sizes["draw"] == 10


def test_killed_before_it_can_be_seen_the_run_is_not_lost(study, monkeypatch):
    def fail(self):
        raise Killed

    monkeypatch.setattr(SampleStore, "publish", fail)
    with pytest.raises(Killed):
        create(study)
    monkeypatch.undo()
    assert runs(study) == []
    assert SampleStore.resume(study, GROUP, SETTINGS).draws_done == 0
    assert runs(study) == [GROUP]


def test_what_a_killed_writer_left_is_removed_by_the_next(study):
    create(study)
    left = study / GROUP / "posterior" / "order_parameter" / "zarr.0123.partial"
    left.write_text("{")
    beside = folder_beside(study)
    with sole_writer(study):
        assert not left.exists()
        assert not beside.exists()
        with pytest.raises(StoreError, match="another process is writing"), sole_writer(study):
            pass
    with sole_writer(study):
        pass


def test_creation_is_whole_or_not_at_all(study, monkeypatch):
    def fail(*arguments):
        raise Killed

    monkeypatch.setattr("pathkernel_sampling.sample_store.create_adaptation", fail)
    with pytest.raises(Killed):
        create(study)
    assert runs(study) == []
    assert [path.name for path in study.parent.iterdir()] == [study.name]
    assert SampleStore.resume(study, GROUP, SETTINGS) is None


def test_other_settings_are_refused_by_name(study):
    create(study)
    store = SampleStore.resume(study, GROUP, SETTINGS)
    store._resize("posterior", 7)  # as in the middle of a block
    with pytest.raises(StoreError, match="warm-up: the store has 20, this run 30"):
        SampleStore.resume(study, GROUP, SETTINGS | {"warm_up": 30})
    assert store.read("posterior", "order_parameter").shape[1] == 7, "left as it is"


def test_a_missing_run_is_named_with_those_there_are(study):
    with pytest.raises(StoreError, match="it has none"):
        open_samples(study, GROUP)
    create(study)
    other = group_name("weights", Point(width=10, temperature=0.01, seed=0))
    with pytest.raises(StoreError, match=GROUP):
        open_samples(study, other)


def test_runs_live_beside_one_another(begun):
    study, other = begun.path, group_name("collapsed", Point(width=10, temperature=0.01, seed=0))
    create(study, other).append(block(1, 15), states(15), 2.0)
    assert runs(study) == sorted([GROUP, other])
    assert open_samples(study, GROUP)["posterior"].sizes["draw"] == 10
    assert open_samples(study, other)["posterior"].sizes["draw"] == 15


def test_a_block_that_was_not_finished_is_not_shown_by_another_run(begun, monkeypatch):
    study = begun.path

    def fail(self, array, region, values):
        raise Killed

    monkeypatch.setattr(SampleStore, "_put", fail)
    with pytest.raises(Killed):
        begun.append(block(10, 5), states(15), 3.0)
    monkeypatch.undo()
    create(study, group_name("collapsed", Point(width=10, temperature=0.01, seed=0)))
    assert open_samples(study, GROUP)["posterior"].sizes["draw"] == 10


def test_the_index_is_that_of_zarr(begun):
    """What is written entry by entry is what Zarr would write for the whole store."""
    study = begun.path
    other = group_name("weights", Point(width=100, temperature=0.01, seed=0))
    create(study, other).append(block(1, 15), states(15), 2.0)
    found = json.loads((study / "zarr.json").read_text())["consolidated_metadata"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(study)
    whole = json.loads((study / "zarr.json").read_text())["consolidated_metadata"]
    del whole["metadata"]["metadata_copy"]  # which readers are not to see
    assert found == whole
