"""Sums over training examples, however these are split, merged, kept and read."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from fractions import Fraction

import formulas
import hypothesis
import numpy as np
import pytest
import zarr
from hypothesis import strategies as st

import pathkernel_core as pk
from pathkernel_core import Network, Problem, SufficientStatistics, row_batches
from pathkernel_core.arrays.backend import array_namespace, gram_matrix, to_host


@pytest.fixture
def examples(generator):
    return formulas.random_examples(Network((2, 2), 10), 9, 5, generator)


def statistics_equal(first, two):
    np.testing.assert_allclose(to_host(first.gram), to_host(two.gram), atol=1e-12)
    np.testing.assert_allclose(to_host(first.projections), to_host(two.projections), atol=1e-12)
    assert first.label_square == pytest.approx(two.label_square)
    assert first.n_examples == two.n_examples


def test_statistics_are_sums_over_examples(library, examples):
    xi, labels = examples
    actual = SufficientStatistics.of(library.array(xi), library.array(labels))
    gram, projections = np.zeros((4, 5, 4, 5)), np.zeros((4, 5, 1))
    for example, label in zip(xi, labels):
        gram += np.einsum("pi,qj->piqj", example, example)
        projections[..., 0] += label * example
    np.testing.assert_allclose(library.numpy(actual.gram), gram, atol=1e-12)
    np.testing.assert_allclose(library.numpy(actual.projections), projections, atol=1e-12)
    assert actual.label_square == pytest.approx((labels**2).sum())
    assert actual.n_examples == 9


def test_statistics_of_batches_add_up(library, examples, monkeypatch):
    xi, labels = map(library.array, examples)
    complete = SufficientStatistics.of(xi, labels)
    parts = [
        SufficientStatistics.of(xi[rows, ...], labels[rows]) for rows in (slice(4), slice(4, 9))
    ]
    statistics_equal(parts[0] + parts[1], complete)
    monkeypatch.setattr(
        "pathkernel_core.energy.statistics._BATCH_ELEMENTS", 50
    )  # two examples at a time
    statistics_equal(SufficientStatistics.of(xi, labels), complete)


@pytest.mark.parametrize("outputs", [1, 2])
def test_streamed_statistics_give_the_same_solution(library, generator, outputs):
    network = Network((2, 2), 15, outputs=outputs)
    xi, labels = formulas.random_examples(network, 20, 3, generator)
    new = generator.standard_normal((6, 4, 3))
    total = sum(
        (
            SufficientStatistics.of(library.array(xi[i : i + 5]), library.array(labels[i : i + 5]))
            for i in (5, 10, 15)
        ),
        start=SufficientStatistics.of(library.array(xi[:5]), library.array(labels[:5])),
    )
    streamed = Problem.from_statistics(total)
    assert (streamed.space, streamed.n_examples, streamed.outputs) == ("features", 20, outputs)
    assert streamed.n_features == streamed.input_width == 3
    actual = pk.minimise_action(streamed, network, 0.1)
    expected = pk.minimise_action(Problem(xi, labels, "examples"), network, 0.1)
    assert actual.action == pytest.approx(expected.action, rel=1e-12)
    prediction, reference = actual.predict(library.array(new)), expected.predict(new)
    for ours, theirs in zip(
        (prediction.mean, prediction.variance), (reference.mean, reference.variance)
    ):
        np.testing.assert_allclose(library.numpy(ours), theirs, rtol=1e-6, atol=1e-8)


def test_statistics_that_do_not_match_do_not_add_up(generator):
    first = SufficientStatistics.of(np.ones((2, 1, 3)), np.ones(2))
    two = SufficientStatistics.of(np.ones((2, 2, 3)), np.ones(2))
    with pytest.raises(ValueError, match=r"\(1, 3, 1\) and \(2, 3, 1\) \(paths, N_0, outputs\)"):
        first + two


def merged(parts, draw):
    """Sum of neighbours in an order that is drawn, and the most additions on the way of any."""
    parts = [(part, 0) for part in parts]
    while len(parts) > 1:
        offset = draw(st.integers(0, len(parts) - 2))
        (first, depth), (two, second) = parts[offset : offset + 2]
        parts[offset : offset + 2] = [(first + two, 1 + max(depth, second))]
    return parts[0]


@pytest.fixture(scope="module")
def unsplit():
    """Examples of very different scales, and their solutions without any statistics merged."""
    network, generator = Network((2,), 12), np.random.default_rng(3)
    xi = generator.standard_normal((40, 2, 3)) * 10.0 ** generator.uniform(-3, 3, (1, 2, 3))
    labels = np.sign(xi[:, 0, 0] + generator.standard_normal(40))
    problems = [Problem(xi, labels, space) for space in ("features", "examples")]
    solutions = [pk.minimise_action(single, network, 0.1, tolerance=1e-11) for single in problems]
    return xi, labels, solutions


@hypothesis.settings(max_examples=12)
@hypothesis.given(st.data())
def test_any_split_gives_the_same_solution(unsplit, data):
    """Sums stay within the bound of their docstring, and solutions agree to 1e-9."""
    xi, labels, solutions = unsplit
    cuts = sorted(data.draw(st.sets(st.integers(1, 39), max_size=8)))
    parts = [slice(*ends) for ends in zip([0, *cuts], [*cuts, 40])]
    total, depth = merged(
        [SufficientStatistics.of(xi[part], labels[part]) for part in parts], data.draw
    )
    rows = max(part.stop - part.start for part in parts)
    flat = [[Fraction(value) for value in row] for row in xi.reshape(40, 6).tolist()]
    for i, j in ((0, 0), (0, 4), (2, 5)):
        products = [row[i] * row[j] for row in flat]
        error = abs(Fraction(float(total.gram.reshape(6, 6)[i, j])) - sum(products))
        assert error <= (rows + depth) * Fraction(2) ** -53 * sum(map(abs, products))
    problem, network = Problem.from_statistics(total), solutions[0].network
    actual = pk.minimise_action(problem, network, 0.1, tolerance=1e-11)
    for expected in solutions:
        assert actual.action == pytest.approx(expected.action, rel=1e-9)
        np.testing.assert_allclose(actual.order_parameter, expected.order_parameter, rtol=1e-9)
        new = xi[:5] + 0.1
        np.testing.assert_allclose(actual.predict_mean(new), expected.predict_mean(new), rtol=1e-9)


def test_batches_and_arrays_on_disk_stream(examples, tmp_path):
    xi, labels = examples
    complete = SufficientStatistics.of(xi, labels)
    stored = zarr.create_array(tmp_path / "xi", data=xi, chunks=(2, 4, 5))
    for rows, sizes in ((None, [9]), (4, [4, 4, 1])):
        drawn = list(row_batches(stored, labels, rows))
        assert [len(part) for part, _ in drawn] == sizes
        statistics_equal(SufficientStatistics.of_batches(iter(drawn)), complete)
    with pytest.raises(ValueError, match="batches hold no examples"):
        SufficientStatistics.of_batches([])


def test_batches_are_whole_chunks(examples, tmp_path, monkeypatch):
    xi, labels = examples
    monkeypatch.setattr("pathkernel_core.energy.statistics._BATCH_ELEMENTS", 5 * 20)
    stored = zarr.create_array(tmp_path / "xi", data=xi, chunks=(2, 4, 5))
    assert [len(part) for part, _ in row_batches(stored, labels)] == [4, 4, 1]
    assert [len(part) for part, _ in row_batches(xi, labels)] == [5, 4]


def test_statistics_are_kept_in_files(library, examples, tmp_path):
    complete = SufficientStatistics.of(*map(library.array, examples))
    complete.save(tmp_path / "sums")
    loaded = SufficientStatistics.load(tmp_path / "sums")
    assert isinstance(loaded.gram, np.ndarray)
    np.testing.assert_array_equal(loaded.gram, library.numpy(complete.gram))
    np.testing.assert_array_equal(loaded.projections, library.numpy(complete.projections))
    assert (loaded.label_square, loaded.n_examples) == (complete.label_square, complete.n_examples)
    statistics_equal(loaded.convert(library.array) + complete, complete + complete)
    content = (tmp_path / "sums").read_bytes()
    for damage in (b"", content[:300], content.replace(content[900:904], b"\1\2\3\4", 1)):
        (tmp_path / "sums").write_bytes(damage)
        with pytest.raises(ValueError, match="sums' holds no sufficient statistics, or is damaged"):
            SufficientStatistics.load(tmp_path / "sums")


def test_symmetric_products_by_blocks(library, generator, monkeypatch):
    monkeypatch.setattr("pathkernel_core.arrays.backend._HALVED", 5)
    rows = generator.standard_normal((4, 7))
    remote = library.array(rows)
    actual = library.numpy(gram_matrix(remote, array_namespace(rows=remote)))
    np.testing.assert_allclose(actual, rows.T @ rows, atol=1e-14)
    np.testing.assert_array_equal(actual, actual.T)


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_examples_on_several_devices_are_summed_there():
    """In a process of its own, since JAX fixes the number of devices when it begins."""
    script = """
import jax, numpy as np, pathkernel_core as pk
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 4)
rng = np.random.default_rng(0)
xi = rng.normal(size=(64, 4, 3))
labels = np.sign(xi[:, 0, 0])
mesh = Mesh(np.array(jax.devices()), ("examples",))
spread = NamedSharding(mesh, PartitionSpec("examples"))
there = [jax.device_put(array, spread) for array in (xi, labels)]
assert len(there[0].sharding.device_set) == 4
sums, want = pk.SufficientStatistics.of(*there), pk.SufficientStatistics.of(xi, labels)
np.testing.assert_allclose(sums.gram, want.gram, rtol=0, atol=1e-12)
np.testing.assert_allclose(sums.projections, want.projections, rtol=0, atol=1e-12)
"""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_a_file_with_more_bytes_than_its_header_says_is_refused(tmp_path):
    path = tmp_path / "sums.npz"
    pk.SufficientStatistics.of(np.ones((2, 1, 3)), np.ones(2)).save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["gram.npy"] += b"\0"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match="gram has more bytes than its header says"):
        pk.SufficientStatistics.load(path)


def _possible():
    rng = np.random.default_rng(0)
    return SufficientStatistics.of(rng.normal(size=(9, 2, 3)), rng.normal(size=9))


def _changed(tmp_path, **entries):
    """A file of possible sums, some of them changed."""
    sums = _possible()
    names = ("gram", "projections", "label_square", "n_examples")
    entries = {name: getattr(sums, name) for name in names} | entries
    np.savez(tmp_path / "sums.npz", **entries)
    return tmp_path / "sums.npz"


def _asymmetric():
    gram = _possible().gram.copy()
    gram[0, 0, 1, 2] += 1e-6
    return gram


def _indefinite():
    gram = np.zeros((3, 3)) - 0.9
    np.fill_diagonal(gram, 1.0)  # every pair is possible, the three together are not
    return gram.reshape(1, 3, 1, 3)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"gram": _asymmetric()}, "gram is not symmetric"),
        ({"gram": -_possible().gram}, "gram is not positive semidefinite"),
        ({"gram": _indefinite(), "projections": np.zeros((1, 3, 1))}, "not positive semidefinite"),
        (
            {"gram": np.ones((1, 2, 1, 2)), "projections": np.array([[[10.0], [-10.0]]])},
            "projections are larger",
        ),
        ({"gram": np.full((2, 3, 2, 3), np.nan)}, "holds NaN or infinity"),
        ({"label_square": -1.0}, "label_square is -1"),
        ({"label_square": np.inf}, "label_square is inf"),
        ({"label_square": 1e-3}, "projections are larger than gram and label_square allow"),
        ({"projections": 100 * _possible().projections}, "projections are larger"),
        ({"n_examples": 2**63 - 1}, "n_examples is 9223372036854775807"),
        ({"n_examples": 0}, "n_examples must be a whole number from 1"),
        ({"n_examples": 9.0}, "cannot be interpreted as an integer"),
        ({"n_examples": True}, "n_examples must be a whole number|cannot be interpreted"),
    ],
)
def test_impossible_sums_are_refused(tmp_path, entries, message):
    with pytest.raises(ValueError, match=rf"holds no sufficient statistics.*({message})"):
        SufficientStatistics.load(_changed(tmp_path, **entries))


def test_sums_of_single_precision_and_of_few_examples_are_possible(tmp_path, generator):
    """Rounding leaves small negative eigenvalues where features outnumber examples."""
    for dtype in (np.float32, np.float64):
        xi = (1e3 * generator.normal(size=(3, 4, 30))).astype(dtype)
        sums = SufficientStatistics.of(xi, np.ones(3, dtype))
        sums.save(tmp_path / "sums.npz")
        statistics_equal(SufficientStatistics.load(tmp_path / "sums.npz"), sums)


def test_files_that_never_end_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    np.savez_compressed(tmp_path / "bomb.npz", gram=np.zeros((1000, 1000)))
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path, tmp_path / "bomb.npz"):
        with pytest.raises(ValueError, match="holds no sufficient statistics"):
            SufficientStatistics.load(path)
    with pytest.raises(FileNotFoundError, match="no file"):
        SufficientStatistics.load(tmp_path / "missing.npz")
    with pytest.raises(ValueError, match="only local paths"):
        SufficientStatistics.load("https://example.org/sums.npz")


def test_an_interrupted_save_leaves_the_older_file(tmp_path, monkeypatch):
    older = _possible()
    older.save(tmp_path / "sums.npz")

    def interrupted(stream, **entries):
        stream.write(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", interrupted)
        with pytest.raises(KeyboardInterrupt):
            (older + older).save(tmp_path / "sums.npz")
    statistics_equal(SufficientStatistics.load(tmp_path / "sums.npz"), older)
    assert [entry.name for entry in tmp_path.iterdir()] == ["sums.npz"]


@pytest.mark.parametrize("labels", [8, 10, 0])
def test_labels_of_another_number_of_rows_are_refused(examples, labels):
    xi, _ = examples
    with pytest.raises(ValueError, match=rf"labels of shape \({labels},\) do not fit xi of shape"):
        next(row_batches(xi, np.ones(labels)))
    for rows in (0, 2.5, True):
        with pytest.raises(ValueError, match="rows must be a whole number from 1"):
            next(row_batches(xi, np.ones(9), rows))
