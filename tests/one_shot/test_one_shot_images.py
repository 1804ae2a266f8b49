"""One-shot images: episodes, tokens, files of heads, and the task."""

import hashlib
import io
import itertools
import os
import pickle
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from pathkernel_core import QueryKey, attentioned_inputs
from pathkernel_core.contracts.testing import check_task
from pathkernel_one_shot import held_out
from pathkernel_one_shot.idx import FASHION_MNIST, MNIST, read_idx_set
from pathkernel_one_shot.omniglot import (
    ARCHIVE_DIGESTS,
    SPLIT_DIGESTS,
    read_drawings,
    split_characters,
)
from pathkernel_one_shot.task import OneShotImages
from pathkernel_one_shot.tokens import (
    Episodes,
    assemble,
    character_episodes,
    label_vectors,
    patches,
    positions,
    two_class_episodes,
)
from pathkernel_tasks.heads_file import heads_digest, read_heads, save_heads

WIDTH = 192
SMALL = {
    "heads": "random",
    "examples": 20,
    "test_examples": 10,
    "heads_per_layer": 2,
    "qk_width": 4,
}


def needs_data(test):
    """Mark a test that reads the real archives; it is skipped where there is no mirror."""
    skip = pytest.mark.skipif(
        not os.environ.get("PATHKERNEL_DATA"),
        reason="set PATHKERNEL_DATA to a folder that holds the image archives",
    )
    return pytest.mark.data(skip(test))


@pytest.fixture
def generator():
    return np.random.default_rng(5)


# -- episodes


def check_labels(episodes, class_of):
    """The target is the label shown with the context image of the query's class."""
    first, second, query = class_of(episodes.images).T
    assert (first != second).all()
    assert ((query == first) | (query == second)).all()
    expected = np.where(query == first, episodes.first_labels, -episodes.first_labels)
    assert np.array_equal(episodes.labels, expected)
    assert episodes.labels.sum() == 0
    assert np.array_equal(abs(episodes.labels), np.ones(len(query)))


def test_character_episodes(generator):
    episodes = character_episodes(7, 2000, generator)
    check_labels(episodes, lambda images: images // 20)
    assert set((episodes.images // 20).ravel()) == set(range(7))
    assert set((episodes.images % 20).ravel()) == set(range(20))
    first, second, query = episodes.images.T
    assert not (query == first).any()
    assert not (query == second).any()
    # neither the order of the labels nor the position of the answer gives the target away
    assert abs(np.mean(episodes.first_labels * episodes.labels)) < 0.1
    assert abs(np.mean(episodes.first_labels)) < 0.1


def test_two_class_episodes(generator):
    zeros, ones = np.arange(100, 150), np.arange(300, 361)
    episodes = two_class_episodes((zeros, ones), 2000, generator)
    check_labels(episodes, lambda images: (images >= 300).astype(int))
    contexts, queries = episodes.images[:, :2], episodes.images[:, 2]
    assert not np.intersect1d(contexts, queries).size
    assert set(episodes.images.ravel()) == set(zeros) | set(ones)
    uses = np.unique(queries[queries < 300], return_counts=True)[1]
    assert uses.max() - uses.min() <= 1
    assert abs(np.mean(episodes.first_labels * episodes.labels)) < 0.1
    assert abs(np.mean(queries >= 300) - 0.5) < 0.1
    assert abs(np.mean((queries >= 300) * episodes.labels)) < 0.1


# -- tokens


def test_patches_are_standardised_in_row_major_order(generator):
    images = generator.random((3, 32, 32))
    result = patches(images)
    assert result.shape == (3, 16, WIDTH)
    assert abs(result.mean(axis=-1)).max() < 1e-12
    variance = images.reshape(3, 4, 8, 4, 8).var(axis=(2, 4)).reshape(3, 16)
    assert np.allclose(result.var(axis=-1), variance / (variance + 1e-5))
    piece = np.repeat(images[1, 8:16, 16:24].ravel(), 3)  # second row, third column
    assert np.allclose(result[1, 6], (piece - piece.mean()) / np.sqrt(piece.var() + 1e-5))


def test_blank_patch_becomes_zero():
    assert not patches(np.full((1, 32, 32), 0.3)).round(12).any()
    assert not patches(np.zeros((1, 32, 32))).any()


def test_positions():
    result = positions()
    assert result.shape == (48, WIDTH)
    assert abs(result.mean()) < 1e-12
    assert abs(result.std() - 1) < 1e-12
    token, pair = 5, 7
    angle = token * 10000 ** (-2 * pair / WIDTH)
    spread = (np.sin(angle) - np.cos(angle)) / (result[token, 14] - result[token, 15])
    first = np.sin(angle) - spread * result[token, 14]
    assert np.allclose(first + spread * result[0, 1::2], 1.0)  # cos 0
    assert np.allclose(first + spread * result[0, ::2], 0.0)  # sin 0


def test_label_vectors_are_fixed_by_their_own_seed():
    assert np.array_equal(label_vectors(), label_vectors(0))
    assert not np.array_equal(label_vectors(0), label_vectors(1))
    assert label_vectors(3).shape == (3, WIDTH)


def test_tokens_are_patch_plus_position_plus_label(generator):
    images, vectors = generator.random((4, 32, 32)), generator.random((3, WIDTH))
    episodes = Episodes(
        np.array([[0, 1, 2], [3, 0, 1]]), np.array([1.0, -1.0]), np.array([1.0, -1.0])
    )
    examples = assemble(images, episodes, vectors)
    assert examples.inputs.shape == (2, 48, WIDTH)
    assert np.array_equal(examples.labels, [1.0, -1.0])
    rest = examples.inputs - positions()
    minus, plus, unknown = vectors
    for row, (numbers, shown) in enumerate(
        [((0, 1, 2), (plus, minus, unknown)), ((3, 0, 1), (minus, plus, unknown))]
    ):
        for image, (number, vector) in enumerate(zip(numbers, shown)):
            tokens = rest[row, 16 * image : 16 * image + 16]
            assert np.allclose(tokens, patches(images[[number]])[0] + vector)


# -- files of heads


@pytest.fixture
def layers(generator):
    return [
        QueryKey(generator.random((2, 3, WIDTH)), generator.random((2, 3, WIDTH)), 0.5),
        QueryKey(generator.random((1, 4, WIDTH)), generator.random((1, 4, WIDTH)), 0.25),
    ]


def assert_same_layers(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected):
        assert np.array_equal(one.queries, other.queries)
        assert np.array_equal(one.keys, other.keys)
        assert one.queries.dtype == np.float64


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "NPZ"])
def test_heads_round_trip(tmp_path, layers, suffix):
    path = tmp_path / f"heads.{suffix}"
    save_heads(path, layers, label_vectors=label_vectors(4))
    heads = read_heads(path, WIDTH)
    assert_same_layers(heads.layers, layers)
    assert [layer.scale for layer in heads.layers] == [0.5, 0.25]
    assert np.array_equal(heads.label_vectors, label_vectors(4))
    assert heads_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_heads_scale(tmp_path, layers):
    path = tmp_path / "heads.npz"
    save_heads(path, [replace(layer, scale=0.1) for layer in layers])
    assert [layer.scale for layer in read_heads(path, WIDTH).layers] == [0.1, 0.1]
    bare = [QueryKey(layer.queries, layer.keys) for layer in layers]
    save_heads(path, bare)
    inputs = np.random.default_rng(1).standard_normal((2, 5, WIDTH))
    expected = attentioned_inputs(inputs, bare)
    assert np.allclose(attentioned_inputs(inputs, read_heads(path, WIDTH).layers), expected)


def arrays_of(layers):
    return {
        f"{kind}.{number}": getattr(layer, kind)
        for number, layer in enumerate(layers, start=1)
        for kind in ("queries", "keys")
    }


def test_heads_file_without_scale_and_labels(tmp_path, layers):
    path = tmp_path / "heads.safetensors"
    arrays = {name: array.astype(np.float32) for name, array in arrays_of(layers).items()}
    save_file({**arrays, "values.1": np.ones(3), "readout": np.zeros(2, np.int64)}, path)
    heads = read_heads(path, WIDTH)
    assert [layer.scale for layer in heads.layers] == pytest.approx([3**-0.5, 0.5])
    assert heads.label_vectors is None
    assert heads.layers[0].keys.dtype == np.float64


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys.2": None}, r"lacks 'keys\.2'"),
        ({"queries.1": None, "keys.1": None}, r"lacks 'queries\.1', 'keys\.1'"),
        ({"queries.4": np.ones((1, 2, WIDTH))}, r"lacks 'queries\.3', 'keys\.3', 'keys\.4'"),
        (dict.fromkeys(("queries.1", "keys.1", "queries.2", "keys.2")), r"lacks 'queries\.1'"),
        ({"query.3": np.ones(2)}, r"holds 'query\.3'; queries and keys must be named"),
        ({"keys.01": np.ones(2)}, r"holds 'keys\.01'"),
        ({"queries.1": np.ones((2, WIDTH))}, r"'queries\.1' must have shape \(H_1, G_1, N_0\)"),
        ({"queries.1": np.ones((2, 3, 191))}, r"'queries\.1' must have shape .* \(2, 3, 191\)"),
        ({"queries.1": np.ones((0, 3, WIDTH))}, r"'queries\.1' must have shape"),
        (
            {"keys.1": np.ones((2, 4, WIDTH))},
            r"'keys\.1' must have shape .* G_1 = 3 of 'queries\.1'",
        ),
        ({"keys.2": np.full((1, 4, WIDTH), np.nan)}, r"'keys\.2' holds NaN"),
        ({"keys.2": np.ones((1, 4, WIDTH), np.int64)}, r"'keys\.2' must hold real .* int64"),
        ({"scale": np.ones(3)}, r"'scale' must have shape \(2\), but has \(3,\)"),
        ({"scale": np.array(np.inf)}, r"'scale' holds NaN or infinity"),
        ({"labels": np.ones((2, WIDTH))}, r"'labels' must have shape \(3, N_0\) with N_0 = 192"),
    ],
)
def test_wrong_heads_files(tmp_path, layers, suffix, change, message):
    path = tmp_path / f"heads.{suffix}"
    arrays = {**arrays_of(layers), **change}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    if suffix == "npz":
        np.savez(path, **arrays)
    else:
        save_file(arrays, path)
    with pytest.raises(ValueError, match=rf"heads file .*heads\.{suffix}.*{message}"):
        read_heads(path, WIDTH)


def test_missing_heads_file(tmp_path):
    for read in (lambda path: read_heads(path, WIDTH), heads_digest):
        with pytest.raises(FileNotFoundError, match=r"no heads file .*none\.npz"):
            read(tmp_path / "none.npz")


def test_wrong_suffix(tmp_path, layers):
    message = r"heads\.pt' must end in \.safetensors or \.npz"
    with pytest.raises(ValueError, match=message):
        save_heads(tmp_path / "heads.pt", layers)
    with pytest.raises(ValueError, match=message):
        read_heads(tmp_path / "heads.pt", WIDTH)
    with pytest.raises(ValueError, match="at least one layer"):
        save_heads(tmp_path / "heads.npz", [])


class Bomb:
    """Object that would show, once unpickled, that it was."""

    def __reduce__(self):
        return os.abort, ()


def test_pickled_objects_are_never_loaded(tmp_path, layers):
    path = tmp_path / "heads.npz"
    np.savez(path, **arrays_of(layers), labels=np.array([Bomb()], dtype=object))
    with pytest.raises(ValueError, match="holds Python objects, which are never loaded"):
        read_heads(path, WIDTH)
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="is damaged or of another format"):
        read_heads(path, WIDTH)


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
@pytest.mark.parametrize("keep", [0, 5, 300, -40])
def test_truncated_heads_file(tmp_path, layers, suffix, keep):
    path = tmp_path / f"heads.{suffix}"
    save_heads(path, layers)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=rf"heads\.{suffix}' is damaged or of another format"):
        read_heads(path, WIDTH)


def test_other_damage_to_heads_files(tmp_path, layers):
    path = tmp_path / "heads.npz"
    np.savez(path, **arrays_of(layers))
    content = bytearray(path.read_bytes())
    content[5000] ^= 1  # in the data of the first array
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        read_heads(path, WIDTH)

    stream = io.BytesIO()
    np.save(stream, np.ones(3))
    path.write_bytes(stream.getvalue())
    with pytest.raises(ValueError, match="is damaged or of another format"):
        read_heads(path, WIDTH)

    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("queries.1", b"text")
    with pytest.raises(ValueError, match="damaged"):
        read_heads(path, WIDTH)


def test_type_that_numpy_lacks(tmp_path):
    path = tmp_path / "heads.safetensors"
    header = b'{"queries.1":{"dtype":"F8_E4M3","shape":[1,1,2],"data_offsets":[0,2]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(ValueError, match=r"'queries\.1' is of type F8_E4M3"):
        read_heads(path, WIDTH)


# -- the task


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": 3}, "examples must be even"),
        ({"test_examples": 7}, "test_examples must be even and at least 2"),
        ({"test_examples": 0}, "test_examples must be at least 2"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"heads_per_layer": 0}, "heads_per_layer must be at least 1"),
        ({"qk_width": -1}, "qk_width must be at least 1"),
        ({"label_seed": -1}, "label_seed must be at least 0"),
        ({"heads": "randon"}, 'heads must be "random", a file or trained:NAME: .*randon'),
        ({"heads": "x.npz", "layers": 3}, "layers=3 is an option of random heads.* 'x.npz'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        OneShotImages(**options)


def test_missing_heads_show_before_any_image_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHKERNEL_DATA", str(tmp_path / "nowhere"))
    task = OneShotImages(heads=str(tmp_path / "none.safetensors"))
    for use in (lambda: task.realise(0), task.provenance):
        with pytest.raises(FileNotFoundError, match="no heads file"):
            use()


def test_provenance(tmp_path, layers):
    plain = OneShotImages(heads="random").provenance()
    assert set(ARCHIVE_DIGESTS.values()) < set(plain.values())
    assert plain["omniglot characters"].split(",") == list(SPLIT_DIGESTS.values())
    assert "heads" not in plain
    path = tmp_path / "heads.npz"
    save_heads(path, layers)
    assert OneShotImages(heads=str(path)).provenance() == {**plain, "heads": heads_digest(path)}


def test_defaults_are_the_papers():
    task = OneShotImages()
    assert (task.examples, task.test_examples, task.heads) == (600, 1000, "trained:2-4-512-128")
    assert task.widths == (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
    grid = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5)
    assert task.temperatures == grid
    layer = task._random_layer(np.random.default_rng(0))
    assert layer.queries.shape == layer.keys.shape == (4, 128, 192)
    for array in (layer.queries, layer.keys):
        assert array.std() == pytest.approx(1, rel=0.01)
    assert layer.scale is None  # 1/(N_0 √G)


def test_import_is_light():
    code = (
        "import sys, pathkernel_one_shot.task; "
        "print({'PIL', 'pooch', 'safetensors', 'requests'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert output.strip() == "set()"


@needs_data
def test_it_keeps_the_contract():
    check_task(OneShotImages(**SMALL))


@pytest.fixture(scope="module")
def realisation():
    return OneShotImages(**{**SMALL, "examples": 200, "test_examples": 200}).realise(3)


@needs_data
def test_realisation(realisation):
    assert realisation.heads == (2, 2)
    assert realisation.readout == "mean"
    assert list(realisation.test_sets) == ["omniglot", "fashion-mnist", "mnist"]
    every = (realisation.train, *realisation.test_sets.values(), realisation.validation)
    for examples in every:
        assert examples.inputs.shape == (200, 48, WIDTH)
        assert examples.inputs.dtype == np.float64
        assert np.count_nonzero(examples.labels == 1) == 100
        assert np.count_nonzero(examples.labels == -1) == 100


def decompose(examples):
    """Patches (P, 3, 16, 192) and shown labels (P, 3) of examples, from their tokens alone."""
    rest = (examples.inputs - positions()).reshape(-1, 3, 16, WIDTH)
    # a patch has mean 0, so a token's mean over its entries is that of its label vector
    distance = abs(rest.mean(axis=(2, 3))[..., None] - label_vectors().mean(axis=1))
    shown = np.array([-1, 1, 0])[np.argmin(distance, axis=-1)]
    vectors = label_vectors()[np.argmin(distance, axis=-1)]
    return rest - vectors[:, :, None, :], shown


@needs_data
def test_images_of_a_label_look_alike(realisation):
    """The label of the nearer context image is the target more often than chance."""
    for name, least in (("omniglot", 0.6), ("fashion-mnist", 0.7), ("mnist", 0.7)):
        examples = realisation.test_sets[name]
        images, shown = decompose(examples)
        assert (np.sort(shown[:, :2], axis=1) == [-1, 1]).all()
        assert not shown[:, 2].any()
        # a picture is recognised however its patches were standardised; blank ones are 0
        distance = ((images[:, :2] - images[:, 2:]) ** 2).sum(axis=(2, 3))
        nearest = shown[np.arange(len(shown)), distance.argmin(axis=1)]
        assert np.mean(nearest == examples.labels) > least, name


@needs_data
def test_contexts_and_queries_share_no_image(realisation):
    for examples in realisation.test_sets.values():
        images, _ = decompose(examples)
        contexts = {image.round(9).tobytes() for image in images[:, :2].reshape(-1, 16 * WIDTH)}
        queries = {image.round(9).tobytes() for image in images[:, 2].reshape(-1, 16 * WIDTH)}
        assert queries
        if examples is not realisation.test_sets["omniglot"]:  # its characters come again
            assert not contexts & queries


@needs_data
def test_training_validation_and_test_episodes_share_no_character_and_no_image(monkeypatch):
    """Neither by their names nor by what they look like."""
    offered, read = [], []

    def reading(characters, numbers):
        offered.append(set(characters))
        read.append({(characters[number // 20], number % 20) for number in numbers})
        return read_drawings(characters, numbers)

    monkeypatch.setattr(held_out, "read_drawings", reading)
    realisation = OneShotImages(**{**SMALL, "examples": 300, "test_examples": 300}).realise(0)
    assert offered == [set(split_characters(name)) for name in ("train", "test", "val")]
    sets = (realisation.train, realisation.test_sets["omniglot"], realisation.validation)
    seen = []
    for drawings, examples in zip(read, sets, strict=True):
        images, _ = decompose(examples)
        seen.append({image.round(9).tobytes() for image in images.reshape(-1, 16 * WIDTH)})
        assert len(seen[-1]) > 0.99 * len(drawings)  # hardly any two drawings are the same
    for one, other in itertools.combinations(range(3), 2):
        assert not offered[one] & offered[other]
        assert not read[one] & read[other]
        assert not seen[one] & seen[other]


@needs_data
def test_validation_episodes_change_no_other_draw():
    """Each set draws from its own child of the seed."""
    task = OneShotImages(**SMALL)
    realisation = task.realise(3)
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(3).spawn(5)]
    counts = (task.examples, *[task.test_examples] * 3)
    expected = [
        held_out.draw_episodes(source, count, label_vectors(), stream).examples()
        for source, count, stream in zip(("train", "test", FASHION_MNIST, MNIST), counts, streams)
    ]
    for actual, wanted in zip((realisation.train, *realisation.test_sets.values()), expected):
        assert np.array_equal(actual.inputs, wanted.inputs)
        assert np.array_equal(actual.labels, wanted.labels)
    queries = streams[4].standard_normal(realisation.layers[0].queries.shape)
    assert np.array_equal(realisation.layers[0].queries, queries)


@needs_data
@pytest.mark.parametrize("source", [FASHION_MNIST, MNIST])
def test_out_of_distribution_episodes_of_the_real_sets(source, generator):
    _, labels = read_idx_set(source)
    classes = np.flatnonzero(labels == 0), np.flatnonzero(labels == 1)
    episodes = two_class_episodes(classes, 1000, generator)
    assert not np.intersect1d(episodes.images[:, :2], episodes.images[:, 2]).size
    check_labels(episodes, lambda numbers: np.isin(numbers, classes[1]).astype(int))


@needs_data
@pytest.mark.parametrize("source", [FASHION_MNIST, MNIST])
def test_out_of_distribution_classes_are_0_and_1(source, generator, monkeypatch):
    offered = []

    def offering(classes, *arguments):
        offered.extend(classes)
        return two_class_episodes(classes, *arguments)

    monkeypatch.setattr(held_out, "two_class_episodes", offering)
    held_out.draw_episodes(source, 2, label_vectors(), generator)
    _, labels = read_idx_set(source)
    for label, images in zip((0, 1), offered, strict=True):
        assert np.array_equal(images, np.flatnonzero(labels == label))


@needs_data
def test_heads_of_a_file_are_used_with_their_labels(tmp_path, layers):
    path = tmp_path / "heads.safetensors"
    save_heads(path, layers, label_vectors=label_vectors(9))
    sizes = {"examples": 4, "test_examples": 4}
    trained = OneShotImages(heads=str(path), **sizes).realise(0)
    assert_same_layers(trained.layers, layers)
    random = OneShotImages(heads="random", label_seed=9, **sizes).realise(0)
    assert np.array_equal(trained.train.inputs, random.train.inputs)
    save_heads(path, layers)
    plain = OneShotImages(heads=str(path), **sizes).realise(0)
    assert np.array_equal(
        plain.train.inputs, OneShotImages(heads="random", **sizes).realise(0).train.inputs
    )


@needs_data
def test_more_test_episodes_leave_training_alone():
    one, other = (OneShotImages(**{**SMALL, "test_examples": count}).realise(0) for count in (4, 8))
    assert np.array_equal(one.train.inputs, other.train.inputs)
    assert np.array_equal(one.layers[1].keys, other.layers[1].keys)
