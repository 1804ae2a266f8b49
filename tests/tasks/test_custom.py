"""The task on a user's own files: the same results as the core, and every refusal."""

import dataclasses
import hashlib
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from safetensors.numpy import save_file

import pathkernel_core as pk
from pathkernel_analyses.heads import HeadScores
from pathkernel_core.arrays.backend import to_host
from pathkernel_core.contracts import testing
from pathkernel_datasets.errors import StudyError, TaskError
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run import sums
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.variables.labelling import json_attribute
from pathkernel_tasks import custom, custom_data
from pathkernel_tasks.custom import Custom
from pathkernel_tasks.heads_file import save_heads
from pathkernel_views.study_tables import study_summary

P, TESTS, M, WIDTH = 20, 12, 5, 4


@pytest.fixture
def layers():
    generator = np.random.default_rng(1)
    return [
        pk.QueryKey(generator.normal(size=(h, 3, WIDTH)), generator.normal(size=(h, 3, WIDTH)), 0.7)
        for h in (2, 3)
    ]


@pytest.fixture
def arrays():
    generator = np.random.default_rng(2)
    inputs = generator.normal(size=(P, M, WIDTH))
    test = generator.normal(size=(TESTS, M, WIDTH))
    return {
        "inputs": inputs,
        "labels": (inputs[:, :, 0].sum(axis=1) > 0).astype(int),
        "test_inputs": test,
        "test_labels": (test[:, :, 0].sum(axis=1) > 0).astype(int),
    }


@pytest.fixture
def data(tmp_path):
    """Write a data file → its path, as text."""

    def write(arrays, name="data.npz"):
        path = tmp_path / name
        if path.suffix == ".npz":
            np.savez(path, **arrays)
        elif path.suffix == ".safetensors":
            save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, path)
        else:
            variables = {
                key: ([f"{key}_{axis}" for axis in range(value.ndim)], value)
                for key, value in arrays.items()
            }
            xr.Dataset(variables).to_zarr(path, zarr_format=3, consolidated=False)
        return str(path)

    return write


@pytest.fixture
def heads(tmp_path, layers):
    path = tmp_path / "heads.safetensors"
    save_heads(path, layers)
    return str(path)


def matrices(arrays, layers, last=False):
    """The same arrays with the attention of the heads beside them."""
    result = dict(arrays)
    for stem in [name for name in arrays if "inputs" in name]:
        for number, layer in enumerate(layers, start=1):
            omega = layer.attention(arrays[stem])
            name = f"{stem.replace('inputs', 'attention')}.{number}"
            result[name] = omega.swapaxes(-1, -2) if last else omega
    return result


@pytest.fixture
def direct(arrays, layers):
    """Predictions of the core alone, at width 10 and temperature 0.1."""
    sign = {name: 2.0 * arrays[name] - 1 for name in ("labels", "test_labels")}
    xi = pk.attentioned_inputs(arrays["inputs"], layers, "mean")
    problem = pk.Problem(xi, sign["labels"])
    solution = pk.minimise_action(problem, pk.Network((2, 3), 10), 0.1)
    new = pk.attentioned_inputs(arrays["test_inputs"], layers, "mean")
    mean = solution.predict(new).mean
    return solution.order_parameter, mean, np.mean(mean * sign["test_labels"] > 0)


def check_study(task, path, direct, analyses=()):
    run_study(Study(task, widths=(10,), temperatures=(0.1,)), path, analyses=analyses)
    study = open_study(path).isel(seed=0, temperature=0, width=0)
    order_parameter, mean, accuracy = direct
    assert np.allclose(study.order_parameter, order_parameter, rtol=1e-6, atol=1e-8)
    assert np.allclose(study.predictor_mean.sel(test_set="test"), mean, atol=1e-7)
    assert study.accuracy.item() == accuracy
    return study


@pytest.mark.parametrize("name", ["data.npz", "data.safetensors", "data.zarr"])
def test_a_study_is_what_the_core_computes(tmp_path, data, arrays, heads, direct, name):
    task = Custom(inputs=data(arrays, name), heads=heads, readout="mean")
    study = check_study(task, tmp_path / "study", direct)
    assert json_attribute(study.attrs, "notes") == {"labels": "classes 0 and 1 became −1 and +1"}
    assert f"custom, {name}, heads.safetensors" in study.attrs["label"]


@pytest.mark.parametrize("key_axis", ["first", "last"])
def test_attention_matrices_of_the_same_heads(tmp_path, data, arrays, layers, direct, key_axis):
    path = data(matrices(arrays, layers, last=key_axis == "last"))
    task = Custom(inputs=path, readout="mean", key_axis=key_axis, approximation="of an encoder")
    study = check_study(task, tmp_path / "study", direct)
    assert json_attribute(study.attrs, "notes")["approximation"] == "of an encoder"
    sentences = list(study_summary(open_study(tmp_path / "study")))
    assert "Approximation: of an encoder" in sentences
    assert "Labels: classes 0 and 1 became −1 and +1" in sentences


MANY = 70


def check_blocks(task):
    testing._check_blocks_are_drawn_alike(task)


@pytest.fixture
def many(monkeypatch):
    """Targets of more examples than are held at once: these, and the problem of all of them."""
    for module in (custom, custom_data):
        monkeypatch.setattr(module, "HELD", 30)
    monkeypatch.setattr(custom, "_BLOCK", 8)
    monkeypatch.setattr(custom, "_SHOWN", 10)
    monkeypatch.setattr(sums, "_BLOCKS_OF_PART", 2)
    generator = np.random.default_rng(3)
    inputs = generator.normal(size=(MANY, M, WIDTH))
    test = generator.normal(size=(TESTS, M, WIDTH))
    return {
        "inputs": inputs,
        "labels": inputs[:, :, 0].sum(axis=1) + 5,
        "test_inputs": test,
        "test_labels": test[:, :, 0].sum(axis=1) + 5,
    }


@pytest.mark.parametrize("name", ["data.npz", "data.zarr"])
@pytest.mark.parametrize("own", [False, True], ids=["heads", "matrices"])
def test_more_examples_than_are_held(tmp_path, data, layers, heads, many, name, own):
    """Read in blocks, and summed; predictions and errors are those of all examples."""
    path = data(matrices(many, layers) if own else many, name)
    task = Custom(path, heads=None if own else heads, readout="mean", centred=True)
    check_blocks(task)
    held = task.realise(0).train
    assert len(held.labels) == 10
    assert np.ptp(np.flatnonzero(np.isin(many["labels"], held.labels)) % 7) > 3  # of any period
    run_study(Study(task, widths=(10,), temperatures=(0.1,)), tmp_path / "study", analyses=())
    study = open_study(tmp_path / "study").isel(seed=0, temperature=0, width=0)
    assert study.attrs["training_examples"] == MANY
    xi, new = (
        pk.attentioned_inputs(many[key], layers, "mean") for key in ("inputs", "test_inputs")
    )
    mean = many["labels"].mean()
    labels = many["labels"] - mean
    solution = pk.minimise_action(pk.Problem(xi, labels), pk.Network((2, 3), 10), 0.1)
    assert study.action == pytest.approx(solution.action, rel=1e-9)
    np.testing.assert_allclose(study.order_parameter, solution.order_parameter, rtol=1e-6)
    found = study.predictor_mean.sel(test_set="test")
    np.testing.assert_allclose(found, solution.predict(new).mean + mean, rtol=1e-8)
    left_out = pk.leave_one_out(solution, xi, labels)
    shown = np.random.default_rng(0).choice(MANY, 10, replace=False)
    error = np.mean((labels - left_out.mean)[shown] ** 2)
    assert study.leave_one_out_squared_error == pytest.approx(error, rel=1e-7)


def test_blocks_without_the_mean_of_all_are_told(tmp_path, data, heads, many, monkeypatch):
    task = Custom(data(many, "data.npz"), heads, centred=True)
    blocks = dataclasses.replace(task.blocks(0), label_mean=None)
    monkeypatch.setattr(Custom, "blocks", lambda self, seed: blocks)
    with pytest.raises(TaskError, match="the task 'custom' is centred and draws blocks"):
        run_study(Study(task), tmp_path / "study")


def test_workers_sum_the_same_once(tmp_path, data, heads, many, monkeypatch):
    task = Custom(data(many, "data.zarr"), heads, centred=True)
    study = Study(task, widths=(10,), temperatures=(0.1,))
    alone = run_study(study, tmp_path / "alone", analyses=())
    with ThreadPoolExecutor(2) as executor:
        together = run_study(study, tmp_path / "both", analyses=(), executor=executor)
    xr.testing.assert_identical(alone.drop_attrs(), together.drop_attrs())
    one, other = (tmp_path / name / "sums" / "seed-0.npz" for name in ("alone", "both"))
    assert one.read_bytes() == other.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(sums, "sum_part", None)  # a wider grid takes what is summed
        wider = study.on_grid({"width": (10, 30)})
        assert run_study(wider, tmp_path / "alone", analyses=()).action.notnull().all()
    held = StoredStudy(tmp_path / "alone")
    with pytest.raises(StudyError, match=r"needs all training examples at once, but the 70 of"):
        held.rebuild(held.point(10))


def test_blocks_of_a_part_of_the_examples(data, many, heads):
    """The split is that of examples that are held; a Zarr folder is read in its own order."""
    whole = {key: many[key] for key in ("inputs", "labels")}
    tasks = [Custom(data(whole, f"d.{kind}"), heads, test_fraction=0.2) for kind in ("npz", "zarr")]
    drawn = []
    for task in tasks:
        blocks = task.blocks(1)
        parts = [blocks.draw(number) for number in range(len(blocks))]
        assert (len(parts), blocks.examples) == (7, 56)
        drawn.append(np.sort(np.concatenate([part.labels for part in parts])))
        realisation = task.realise(1)
        drawn.append(realisation.test_sets["test"].labels)
        found = np.concatenate([drawn[-1], drawn[-2]])
        np.testing.assert_array_equal(np.sort(found), np.sort(many["labels"]))
        assert blocks.label_mean == pytest.approx(drawn[-2].mean())
    np.testing.assert_array_equal(drawn[0], drawn[2])
    np.testing.assert_array_equal(drawn[1], drawn[3])


def test_many_features_are_no_matter_of_blocks(data, many, heads, monkeypatch):
    few = {key: value[:24] if "test" not in key else value for key, value in many.items()}
    for module in (custom, custom_data):
        monkeypatch.setattr(module, "HELD", 20)  # and there are as many features as examples
    for name in ("data.npz", "data.zarr"):
        task = Custom(data(few, name), heads)
        assert task.blocks(0) is None
        np.testing.assert_array_equal(task.realise(0).train.inputs, few["inputs"])


def test_few_that_are_left_of_many_are_held_whatever_the_file(data, many, heads):
    whole = {key: many[key] for key in ("inputs", "labels")}
    for name in ("data.npz", "data.zarr"):
        task = Custom(data(whole, name), heads, test_fraction=0.6)
        assert task.blocks(0) is None
        assert len(task.realise(0).train.labels) == 28


def test_what_is_wrong_in_a_block_is_told(tmp_path, data, layers, heads, many):
    bad = matrices(many, layers)
    bad["attention.2"][31] *= 2
    with pytest.raises(ValueError, match=r"attention.2' must sum to 1 over key tokens"):
        Custom(data(bad, "data.zarr")).blocks(0).draw(3)
    many["inputs"][33, 2, 1] = np.nan
    task = Custom(data(many, "other.zarr"), heads)
    with pytest.raises(ValueError, match=r"other.zarr': 'inputs' of shape .* holds NaN"):
        run_study(Study(task), tmp_path / "study")
    bad["attention.1"] = bad["attention.1"][:40]
    with pytest.raises(
        ValueError, match=r"'attention.1' .* with P = 70 .*, but has \(40, 2, 5, 5\)"
    ):
        Custom(data(bad, "third.zarr")).realise(0)


def test_arrays_of_any_library_are_as_good_as_files(tmp_path, library, arrays, layers, direct):
    """Kept once, where the study finds them again; the study is what the core computes."""
    given = {name: library.xp.asarray(array) for name, array in arrays.items()}
    heads = [layer.convert(library.array) for layer in layers]
    made = [
        Custom.from_arrays(heads=heads, folder=tmp_path, readout="mean", **given) for _ in range(2)
    ]
    assert made[0] == made[1]
    assert len(list(tmp_path.iterdir())) == 2
    if library.name == "numpy":
        check_study(made[0], tmp_path / "study", direct)
        rebuilt = StoredStudy(tmp_path / "study")
        data = rebuilt.rebuild(rebuilt.point(10, 0.1)).data
        assert np.array_equal(data.realisation.train.inputs, arrays["inputs"])
    else:
        held = made[0].realise(0)
        assert np.array_equal(held.train.inputs, arrays["inputs"])
        assert np.array_equal(held.layers[1].keys, layers[1].keys)
        assert held.layers[1].scale == layers[1].scale


def test_arrays_of_attention_text_and_several_test_sets(tmp_path, monkeypatch, arrays, layers):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    inputs, test = arrays["inputs"], arrays["test_inputs"]
    words = np.array(["no", "yes"], dtype=object)
    first, second = ([layer.attention(part) for layer in layers] for part in (inputs, test))
    task = Custom.from_arrays(
        inputs,
        words[arrays["labels"]],
        attention=first,
        test_inputs={"one": test, "two": inputs},
        test_labels={"one": words[arrays["test_labels"]], "two": words[arrays["labels"]]},
        test_attention={"one": second, "two": first},
    )
    assert tmp_path in Path(task.inputs).parents
    drawn = task.realise(0)
    assert set(drawn.test_sets) == {"one", "two"}
    assert np.array_equal(drawn.test_sets["one"].layers[1].omega, second[1])
    assert np.array_equal(drawn.train.labels, 2.0 * arrays["labels"] - 1)


def test_arrays_that_do_not_fit_are_refused_by_name(tmp_path, arrays, layers):
    refused = [
        (
            {"labels": arrays["labels"][1:]},
            r"'labels' must have shape \(P, \.\.\.\) with P = 20 of 'inputs'",
        ),
        ({"labels": np.array([None] * P)}, r"labels of shape \(20,\) holds Python objects"),
        ({"heads": [pk.AttentionProduct(np.ones((1, 4, 4)))]}, "layer 1 is AttentionProduct"),
        ({"heads": None}, "holds no attention.1"),
    ]
    for changed, message in refused:
        with pytest.raises((TypeError, ValueError), match=message):
            Custom.from_arrays(**{"heads": layers, "folder": tmp_path, **arrays, **changed})


def test_class_names_label_the_outputs(tmp_path, data, arrays, heads):
    for name in ("labels", "test_labels"):
        arrays[name] = np.resize(["plum", "apple", "fig"], len(arrays[name]))
    task = Custom(inputs=data(arrays), heads=heads)
    run_study(Study(task, widths=(10,), temperatures=(0.1,)), tmp_path / "study", analyses=())
    study = open_study(tmp_path / "study")
    assert study["output"].values.tolist() == ["apple", "fig", "plum"]
    wanted = study["test_label"].isel(seed=0, test_set=0).sel(output="plum")
    assert np.array_equal(wanted > 0, arrays["test_labels"] == "plum")


def test_the_kind_is_an_option(data, arrays, heads):
    as_targets = Custom(inputs=data(arrays), heads=heads, kind="targets", centred=True).realise(0)
    assert (as_targets.kind, as_targets.centred) == ("targets", True)
    assert np.array_equal(as_targets.train.labels, arrays["labels"]), "0 is allowed"
    note = "real targets, scored by squared error as asked for; centred, and predictions moved back"
    assert as_targets.notes["labels"] == note
    arrays = {name: array + 50 * ("labels" in name) for name, array in arrays.items()}
    far = Custom(inputs=data(arrays), heads=heads, kind="targets").realise(0)
    assert "mean is further from 0 than they are from it" in far.notes["labels"]
    arrays = {name: array - 50 * ("labels" in name) for name, array in arrays.items()}
    with pytest.raises(ValueError, match="centred is an option of targets, but"):
        Custom(inputs=data(arrays), heads=heads, centred=True).realise(0)
    with pytest.raises(ValueError, match="kind must be one of classes, targets, but is 'numbers'"):
        Custom(inputs="data.npz", kind="numbers")


def attentioned(arrays, layers):
    """The same arrays seen along the paths of the heads."""
    given = {name: arrays[name] for name in ("labels", "test_labels")}
    for name in ("inputs", "test_inputs"):
        given[name] = pk.attentioned_inputs(arrays[name], layers, "mean")
    return given | {"paths": np.array([layer.n_heads for layer in layers])}


def test_attentioned_inputs_of_the_same_heads(tmp_path, data, arrays, layers, direct):
    task = Custom(inputs=data(attentioned(arrays, layers)))
    study = check_study(task, tmp_path / "study", direct, [HeadScores()])
    assert study.head_score.dims == ("head",)
    notes = json_attribute(study.attrs, "notes")
    assert notes["approximation"].startswith("attentioned inputs from a file")


def test_paths_that_are_given_have_none_past_the_heads(tmp_path):
    xi = np.random.default_rng(0).normal(size=(9, 6, 4))
    task = Custom.from_arrays(xi, np.arange(9.0), paths=(2, 3), test_fraction=0.4, folder=tmp_path)
    with pytest.raises(
        ValueError, match="layer 2 cannot be skipped: its inputs already stand for paths"
    ):
        run_study(Study(task, skips=(None, 0.5)), tmp_path / "study")


@pytest.mark.parametrize("paths", [(5,), (2, 3), (3, 1, 2, 2)])
def test_attentioned_inputs_pass_unchanged(tmp_path, paths, library):
    """Through as many layers as there are, of one head too, on every array library."""
    xi = np.random.default_rng(0).normal(size=(3, math.prod(paths), 4))
    task = Custom.from_arrays(xi, np.arange(3.0), paths=paths, test_fraction=0.4, folder=tmp_path)
    drawn = task.realise(0)
    assert drawn.heads == paths
    given = library.array(drawn.train.inputs)
    found = pk.attentioned_inputs(given, drawn.layers, drawn.readout)
    assert np.array_equal(to_host(found), drawn.train.inputs)
    kept = [layer.keep_heads([layer.n_heads]) for layer in drawn.layers]
    last = pk.attentioned_inputs(drawn.train.inputs, kept, drawn.readout)
    assert np.array_equal(last[:, 0], drawn.train.inputs[:, -1])


def test_attentioned_inputs_that_do_not_fit(data, arrays, layers, heads):
    good = attentioned(arrays, layers)
    for changed, message in [
        ({"paths": np.array([2, 2])}, r"with M = 4 of 'paths' \(2, 2\), but has \(20, 6, 4\)"),
        ({"paths": np.array([2.0, 3.0])}, "'paths' must hold the number of heads"),
        ({"paths": np.array([0, 3])}, "'paths' must hold the number of heads"),
        (
            {"test_inputs": good["test_inputs"][:, :5]},
            r"'test_inputs' .* M_test = 6 .*, but has \(12, 5",
        ),
        ({"attention.1": np.ones((len(good["inputs"]), 1, 6, 6)) / 6}, "'attention.1' has no"),
    ]:
        with pytest.raises(ValueError, match=message):
            Custom(inputs=data(good | changed)).realise(0)
    for option in ({"heads": heads}, {"readout": "mean"}):
        with pytest.raises(ValueError, match=rf"so that {next(iter(option))} .* has no place"):
            Custom(inputs=data(good), **option).realise(0)


MODEL = "where the model that they are of attends to hidden states"


@pytest.mark.parametrize(("given", "expected"), [(None, MODEL), ("of a toy", "of a toy"), ("", "")])
def test_attention_matrices_depart_from_the_theory(tmp_path, data, arrays, layers, given, expected):
    """Unless the user says otherwise, and "" says that they do not."""
    path = data(matrices(arrays, layers))
    run_study(
        Study(Custom(inputs=path, approximation=given), widths=(10,), temperatures=(0.1,)),
        tmp_path / "study",
        analyses=(),
    )
    notes = json_attribute(open_study(tmp_path / "study").attrs, "notes")
    assert ("approximation" in notes) == bool(expected)
    assert expected in notes.get("approximation", "")


def test_arrays_that_are_not_read_are_noted(tmp_path, data, arrays, layers):
    path = data({**arrays, "ids": np.ones(3), "about": np.array("mine")})
    labels = data({"labels.txt": np.ones(2), "other": np.ones(2)}, "labels.npz")
    heads = str(tmp_path / "more.npz")
    save_heads(heads, layers)
    with np.load(heads) as archive:
        np.savez(heads, **archive, **{"values.1": np.ones(2)})
    with pytest.raises(ValueError, match=r"labels file .* holds 'labels\.txt'; names must be"):
        Custom(inputs=path, labels=labels, heads=heads).realise(0)
    labels = data({"other": np.ones(2)}, "labels.npz")
    notes = Custom(inputs=path, labels=labels, heads=heads).realise(0).notes
    assert notes["files"] == (
        "data.npz: about, ids not read (read: inputs, labels, test_inputs, test_labels); "
        "labels.npz: other not read; "
        "more.npz: values.1 not read (read: keys.1, keys.2, queries.1, queries.2, scale)"
    )
    save_heads(heads, layers)
    assert "files" not in Custom(inputs=data(arrays), heads=heads).realise(0).notes


def test_split_takes_inputs_labels_and_attention_together(data, arrays, layers):
    train = {name: array for name, array in arrays.items() if not name.startswith("test")}
    path = data(matrices(train, layers))
    realisation = Custom(inputs=path, test_fraction=0.25).realise(3)
    parts = [realisation.train, realisation.test_sets["test"]]
    assert [len(part.inputs) for part in parts] == [15, 5]
    for part in parts:
        assert np.array_equal(part.labels > 0, part.inputs[:, :, 0].sum(axis=1) > 0)
        for layer, expected in zip(realisation.layers_of(part), layers):
            assert np.allclose(layer.omega, expected.attention(part.inputs))
    found = np.concatenate([part.inputs for part in parts])
    order = np.lexsort(found.reshape(P, -1).T)
    assert np.array_equal(
        found[order], arrays["inputs"][np.lexsort(arrays["inputs"].reshape(P, -1).T)]
    )
    other = Custom(inputs=path, test_fraction=0.25).realise(4)
    assert not np.array_equal(other.train.inputs, realisation.train.inputs)


def test_several_test_sets(data, arrays, layers):
    named = {
        name.replace("test_inputs", "test_inputs.far").replace("test_labels", "test_labels.far"): a
        for name, a in arrays.items()
    }
    near = {"test_inputs": arrays["inputs"][:3, :, :], "test_labels": arrays["labels"][:3]}
    given = matrices({**named, **near}, layers)
    realisation = Custom(inputs=data(given)).realise(0)
    assert list(realisation.test_sets) == ["test", "far"]
    assert len(realisation.test_sets["far"].inputs) == TESTS
    assert np.allclose(
        realisation.test_sets["far"].layers[1].omega, layers[1].attention(arrays["test_inputs"])
    )


def test_test_sets_with_numbers_for_names(data, arrays, layers):
    """The last number of attention is that of the layer, and the one before that of the set."""
    named = {
        f"{name}.{number}" if name.startswith("test") else name: array
        for number in (1, 2)
        for name, array in arrays.items()
    }
    realisation = Custom(inputs=data(matrices(named, layers))).realise(0)
    assert list(realisation.test_sets) == ["1", "2"]
    for part in realisation.test_sets.values():
        assert np.allclose(part.layers[1].omega, layers[1].attention(arrays["test_inputs"]))
    wrong = {**named, "attention.1": named["labels"], "test_attention.1": named["labels"]}
    with pytest.raises(ValueError, match=r"'test_attention\.1' belongs to no test_inputs"):
        Custom(inputs=data(wrong)).realise(0)


def test_a_test_set_that_is_named_twice(data, arrays, heads):
    twice = {**arrays, "test_inputs.test": arrays["test_inputs"]}
    with pytest.raises(ValueError, match=r"'test_inputs' and 'test_inputs\.test' are the same"):
        Custom(inputs=data(twice), heads=heads).realise(0)
    renamed = {
        name.replace("test_inputs", "test_inputs.test"): array for name, array in arrays.items()
    }
    assert list(Custom(inputs=data(renamed), heads=heads).realise(0).test_sets) == ["test"]


def test_labels_of_their_own_file(data, arrays, heads):
    tokens = {name: array for name, array in arrays.items() if "inputs" in name}
    given = {name: array for name, array in arrays.items() if "labels" in name}
    inputs, labels = data(tokens), data(given, "labels.zarr")
    apart = Custom(inputs=inputs, labels=labels, heads=heads)
    assert np.array_equal(apart.realise(0).train.labels, 2.0 * arrays["labels"] - 1)
    assert set(apart.provenance()) == {"inputs", "labels", "heads"}
    with pytest.raises(ValueError, match=r"both hold 'labels'"):
        Custom(inputs=data(arrays), labels=labels, heads=heads).realise(0)


def test_classes_become_outputs(tmp_path, data, arrays, heads):
    arrays["labels"], arrays["test_labels"] = np.arange(P) % 3, np.arange(TESTS) % 3
    task = Custom(inputs=data(arrays), heads=heads)
    assert task.realise(0).outputs == 3
    run_study(Study(task, widths=(30,), temperatures=(0.1,)), tmp_path / "study", analyses=())
    study = open_study(tmp_path / "study")
    assert study.sizes["output"] == 3
    assert int(study.status.item()) == 1


def test_constant_and_approximation_of_heads(data, arrays, tmp_path):
    generator = np.random.default_rng(4)
    wide = [pk.QueryKey(*generator.normal(size=(2, 2, 3, WIDTH + 1)))]
    for suffix in ("safetensors", "npz"):
        path = str(tmp_path / f"wide.{suffix}")
        save_heads(path, wide, approximation="heads of a model with skip connections")
        realisation = Custom(inputs=data(arrays), heads=path, constant=True).realise(0)
        assert realisation.train.inputs.shape == (P, M, WIDTH + 1)
        assert (realisation.test_sets["test"].inputs[..., -1] == 1).all()
        assert realisation.notes["approximation"] == "heads of a model with skip connections"
        own = Custom(inputs=data(arrays), heads=path, constant=True, approximation="mine")
        assert own.realise(0).notes["approximation"] == "mine"
        with pytest.raises(ValueError, match=r"width 5, but those of .* 4.*\(--constant\)"):
            Custom(inputs=data(arrays), heads=path).realise(0)


def test_constant_that_is_not_needed(data, arrays, heads):
    with pytest.raises(ValueError, match=r"width 4, but .* have width 5\. Leave constant out"):
        Custom(inputs=data(arrays), heads=heads, constant=True).realise(0)


def test_provenance_follows_the_content(data, arrays, heads):
    task = Custom(inputs=data(arrays), heads=heads)
    with open(heads, "rb") as stream:
        assert task.provenance()["heads"] == hashlib.sha256(stream.read()).hexdigest()
    before = task.provenance()["inputs"]
    data({**arrays, "inputs": arrays["inputs"] + 1})
    assert task.provenance()["inputs"] != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": None}, "lacks 'inputs'; it holds labels, test_inputs, test_labels"),
        (
            {**dict.fromkeys(("inputs", "labels", "test_inputs", "test_labels")), "x": np.ones(P)},
            r"lacks 'inputs', 'labels'; it holds no array .* is read \(data\.npz: x not read\)",
        ),
        ({"labels": None}, "lacks 'labels'"),
        ({"labels": None, "lables": np.ones(P)}, r"lacks 'labels'.*\(data\.npz: lables not read"),
        ({"test_labels": None}, "lacks 'test_labels'"),
        ({"test_inputs": None, "test_labels": None}, r"no test_inputs; add them.*--test-fraction"),
        ({"test_inputs": None}, "'test_labels' belongs to no test_inputs"),
        ({"inputs": np.ones((P, M))}, r"'inputs' must have shape \(P, M, N_0\)"),
        (
            {"inputs": np.ones((P - 1, M, WIDTH))},
            r"'labels' .* P = 19 of 'inputs', but has \(20,\)",
        ),
        ({"inputs": np.full((P, M, WIDTH), np.nan)}, "'inputs' holds NaN"),
        ({"inputs": np.ones((P, M, WIDTH), complex)}, "'inputs' must hold real numbers"),
        (
            {"test_inputs": np.ones((TESTS, M, 3))},
            r"'test_inputs' .* N_0 = 4 of 'inputs', but has \(12, 5, 3\)",
        ),
        ({"labels": np.zeros(P, int)}, "labels holds a single class"),
        ({"test_labels": np.full(TESTS, 7)}, "test_labels holds the class 7"),
        ({"input": np.ones(2)}, "holds 'input'; names must be inputs, labels"),
        ({"test_inputs.a.b": np.ones(2)}, r"holds 'test_inputs\.a\.b'; names must be"),
        ({"attention": np.ones(2)}, "holds 'attention'; names must be"),
        ({"attention_2": np.ones(2)}, "holds 'attention_2'; names must be .* Rename it"),
        ({"attention.0": np.ones(2)}, r"holds 'attention\.0'; names must be"),
        ({"attention.99999999999": np.ones(2)}, r"holds 'attention\.9+'; names must be"),
        ({"attention.far.1": np.ones(2)}, r"holds 'attention\.far\.1'; names must be"),
        ({"attention_mask": np.ones(2)}, "holds 'attention_mask'; names must be"),
        ({"Inputs": np.ones(2)}, "holds 'Inputs'; names must be"),
        ({"train_labels": np.ones(2)}, "holds 'train_labels'; names must be"),
        ({"test-inputs": np.ones(2)}, "holds 'test-inputs'; names must be"),
        ({"test_inputs_far": np.ones(2)}, "holds 'test_inputs_far'; names must be"),
        ({"labels.1": np.ones(2)}, r"holds 'labels\.1'; names must be"),
        ({"labels": np.array([None] * P)}, "holds Python objects, which are never loaded"),
    ],
)
def test_wrong_data_files(data, arrays, heads, change, message):
    given = {name: array for name, array in {**arrays, **change}.items() if array is not None}
    with pytest.raises(ValueError, match=rf"data file .*data\.npz.*{message}"):
        Custom(inputs=data(given), heads=heads).realise(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention.1": None}, r"lacks 'attention\.1'"),
        ({"test_attention.2": None}, r"lacks 'test_attention\.2'"),
        ({"attention.4": np.ones((P, 1, M, M)) / M}, r"lacks 'attention\.3'"),
        ({"attention.9999": np.ones((P, 1, M, M)) / M}, r"lacks 'attention\.3', .*; it holds"),
        (
            {"attention.1": np.ones((P, 2, M, M - 1))},
            r"'attention\.1' must .* \(P, H_1, M, M\) with P = 20",
        ),
        ({"attention.1": np.ones((TESTS, 2, M, M))}, r"'attention\.1' must have shape"),
        ({"attention.1": np.ones((P, 0, M, M))}, r"'attention\.1' must have shape"),
        ({"attention.1": np.ones((P, 2, M, M))}, r"must sum to 1 over key tokens.*use 'last'"),
        ({"attention.1": np.full((P, 2, M, M), np.inf)}, r"'attention\.1' holds NaN or inf"),
        ({"attention.1": -np.ones((P, 2, M, M)) / M}, "holds negative numbers"),
        ({"test_attention.1": np.ones((TESTS, 1, M, M)) / M}, r"H_1 = 2 of 'attention\.1'"),
        ({"test_attention.far.1": np.ones((P, 1, M, M)) / M}, "belongs to no test_inputs"),
    ],
)
def test_wrong_attention(data, arrays, layers, change, message):
    given = {**matrices(arrays, layers), **change}
    given = {name: array for name, array in given.items() if array is not None}
    with pytest.raises(ValueError, match=message):
        Custom(inputs=data(given)).realise(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "inputs must name a data file"),
        ({"inputs": "x.csv"}, r"data file 'x\.csv' must end in \.npz or"),
        ({"inputs": "x.npz", "labels": "y.txt"}, r"labels file 'y\.txt' must end in"),
        ({"inputs": "x.npz", "heads": "h.pt"}, r"heads file 'h\.pt' must end in"),
        (
            {"inputs": "x.npz", "test_fraction": 1.0},
            "test_fraction must be at least 0 and below 1",
        ),
        (
            {"inputs": "x.npz", "readout": "middle"},
            "readout must be a whole number or one of first",
        ),
        ({"inputs": "x.npz", "key_axis": "second"}, "key_axis must be one of first, last"),
        ({"inputs": "x.npz", "heads": "h.npz", "key_axis": "last"}, "leave it out with heads"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        Custom(**options)


@pytest.mark.parametrize("name", ["inputs", "labels", "heads"])
def test_arrays_where_files_are_wanted(name):
    with pytest.raises(TypeError, match=rf"{name} must be text, but is an array .*; name a file"):
        Custom(**({"inputs": "data.npz"} | {name: np.ones((2, 3, 4))}))


def test_paths_name_files_as_text_does(tmp_path):
    names = {"inputs": "data.npz", "labels": "labels.npz", "heads": "heads.npz"}
    paths = {option: tmp_path / name for option, name in names.items()}
    assert Custom(**paths) == Custom(**{option: str(path) for option, path in paths.items()})


def test_options_that_do_not_fit_the_file(data, arrays, layers, heads):
    path = data(arrays)
    with pytest.raises(ValueError, match=r"holds no attention\.1; .*--heads"):
        Custom(inputs=path).realise(0)
    with pytest.raises(ValueError, match="would split the examples, but the data have test sets"):
        Custom(inputs=path, heads=heads, test_fraction=0.5).realise(0)
    with pytest.raises(ValueError, match="seed 1 would repeat seed 0"):
        Custom(inputs=path, heads=heads).realise(1)
    train = {name: arrays[name] for name in ("inputs", "labels")}
    with pytest.raises(ValueError, match="leaves one side empty"):
        Custom(inputs=data(train, "b.npz"), heads=heads, test_fraction=0.01).realise(0)
    both = data(matrices(arrays, layers), "both.npz")
    with pytest.raises(ValueError, match="leave one of the two out"):
        Custom(inputs=both, heads=heads).realise(0)


def test_zarr_that_xarray_did_not_write(tmp_path, arrays, heads):
    group = zarr.create_group(tmp_path / "plain.zarr")
    for name, array in arrays.items():
        group[name] = array
    found = Custom(inputs=str(tmp_path / "plain.zarr"), heads=heads).realise(0).train
    assert np.array_equal(found.inputs, arrays["inputs"])
    assert np.array_equal(found.labels, 2.0 * arrays["labels"] - 1)


def test_chunks_of_a_single_class(tmp_path, arrays, heads):
    """xarray leaves those of the first class out, which a note tells, and errors as well."""
    arrays["labels"] = np.repeat([0, 1], P // 2)
    variables = {
        name: ([f"{name}_{axis}" for axis in range(array.ndim)], array)
        for name, array in arrays.items()
    }
    for half, stem in ((P // 2, "halves"), (P, "single")):
        arrays["labels"][:half] = 0
        arrays["labels"][half:] = 1
        xr.Dataset(variables).to_zarr(
            tmp_path / f"{stem}.zarr",
            zarr_format=3,
            consolidated=False,
            encoding={"labels": {"chunks": (P // 2,)}},
        )
    realisation = Custom(inputs=str(tmp_path / "halves.zarr"), heads=heads).realise(0)
    assert np.array_equal(realisation.train.labels, np.repeat([-1.0, 1], P // 2))
    assert realisation.notes["files"] == "halves.zarr: labels lacks 1 of its 2 chunks, read as 0"
    with pytest.raises(ValueError, match=r"single class, 0; .* \(single\.zarr: labels lacks 2 of"):
        Custom(inputs=str(tmp_path / "single.zarr"), heads=heads).realise(0)


def test_readout_by_index(data, arrays, heads):
    assert Custom(inputs=data(arrays), heads=heads, readout=-2).realise(0).readout == -2


def test_it_keeps_the_contract(data, arrays, layers):
    train = {name: arrays[name] for name in ("inputs", "labels")}
    testing.check_task(Custom(inputs=data(matrices(train, layers)), test_fraction=0.4))
