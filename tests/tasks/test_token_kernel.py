"""Studies with a kernel of tokens: their predictions by hand, and what they refuse."""

import dataclasses

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.contracts.hooks import Plugins
from pathkernel_core.contracts.task import Blocks
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.prepared import array_library, prepare_data
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.testing import SmallTask
from pathkernel_phases.learning import missing_seeds
from pathkernel_tasks.custom import Custom
from pathkernel_trained.study_checkpoint import study_checkpoint

GRID = {"widths": (6,), "temperatures": (0.1,)}


@pytest.fixture
def arrays():
    """Inputs, labels and attention matrices, of training and test examples."""
    generator = np.random.default_rng(7)

    def drawn(count):
        inputs = generator.standard_normal((count, 3, 4))
        omega = generator.dirichlet(np.ones(3), size=(count, 2, 3)).swapaxes(-1, -2)
        return inputs, np.sign(inputs[:, 0, 0] + inputs[:, 1, 1]), omega

    return drawn(10), drawn(5)


@pytest.fixture
def task(arrays, tmp_path):
    (inputs, labels, omega), (new, new_labels, of_new) = arrays
    tests = {"test_inputs": new, "test_labels": new_labels, "test_attention": [of_new]}
    return Custom.from_arrays(inputs, labels, attention=[omega], folder=tmp_path, **tests)


def test_token_kernel_is_an_axis_of_a_study(arrays, task, tmp_path):
    """With any library, the limit's predictor is that of the kernels, and the linear one none."""
    (inputs, labels, omega), (new, _, of_new) = arrays
    settings = {**GRID, "variances": (0.7, 1.0, 1.5), "input_scale": 0.8}
    path, plain = tmp_path / "kernels", tmp_path / "plain"
    study = Study(task, sweep={"token_kernel": ("linear", "erf", "relu")}, **settings)
    dataset = run_study(study, path, analyses=())
    dataset = dataset.squeeze(("seed", "temperature", "width", "test_set"))
    assert dataset["token_kernel"].values.tolist() == ["linear", "erf", "relu"]
    without = run_study(Study(task, **settings), plain, analyses=()).squeeze()
    linear = dataset.sel(token_kernel="linear")
    np.testing.assert_array_equal(linear["order_parameter"], without["order_parameter"])
    for name in ("erf", "relu"):
        layers, new_layers = [pk.Attention(omega)], [pk.Attention(of_new)]
        variance = 0.8**2 * 0.7 * 1.5 / 2  # of inputs, projection and readout, of two paths
        kernel = variance * np.einsum("ppxy->xy", pk.path_kernels(inputs, layers, name))
        cross, _ = pk.path_kernels(inputs, layers, name, new=new, new_layers=new_layers)
        weights = np.linalg.solve(kernel + 0.1 * np.eye(10), labels)
        expected = variance * np.einsum("ppxy->xy", cross) @ weights
        actual = dataset.sel(token_kernel=name)["predictor_mean_gp"]
        np.testing.assert_allclose(actual, expected, atol=1e-8)
    *_, single = StoredStudy(path, Plugins(tasks={Custom.name: Custom})).singles
    rebuilt = single.rebuild(single.point(6, 0.1, 0))
    problem = pk.Problem(rebuilt.data.xi, rebuilt.data.labels)
    solution = pk.minimise_action(problem, rebuilt.network, 0.1)
    stored = single.dataset["order_parameter"].squeeze()
    np.testing.assert_allclose(solution.order_parameter, stored, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_features_of_other_libraries_are_the_same(task, dtype):
    torch = pytest.importorskip("torch")
    study = Study(task, token_kernel="relu", **GRID)
    expected = prepare_data(study, 0, array_library("numpy"))
    data = prepare_data(study, 0, array_library("torch", dtype))
    assert data.xi.dtype == getattr(torch, dtype)
    tolerance = 1e-9 if dtype == "float64" else 1e-5
    of_test, expected_of_test = data.test_sets["test"][0], expected.test_sets["test"][0]
    for xi, others in ((data.xi, expected.xi), (of_test, expected_of_test)):
        actual, kernel = (
            pk.path_kernel(xi, data.xi, 0, 1),
            pk.path_kernel(others, expected.xi, 0, 1),
        )
        np.testing.assert_allclose(actual, kernel, atol=tolerance)


def test_sub_networks_and_results_take_kernels(tmp_path):
    """What takes attentioned inputs does not see that they are features."""

    @dataclasses.dataclass(frozen=True)
    class OfFirstHead(SmallTask):
        def realise(self, seed):
            return dataclasses.replace(
                super().realise(seed), sub_networks={"first heads": ((1,), (1,))}
            )

    study = Study(OfFirstHead(), token_kernel="relu", **GRID)
    dataset = run_study(study, tmp_path / "study", analyses=()).squeeze()
    drawn = OfFirstHead().realise(0)
    layers = [layer.keep_heads([1]) for layer in drawn.layers]
    new = drawn.test_sets["test"].inputs
    kernel = pk.path_kernels(drawn.train.inputs, layers)[0, 0]
    cross, _ = pk.path_kernels(drawn.train.inputs, layers, new=new)
    mean = cross[0, 0] @ np.linalg.solve(kernel + 0.1 * np.eye(12), drawn.train.labels)
    right = (np.sign(mean) == drawn.test_sets["test"].labels).mean()
    assert dataset["accuracy_sub_network"].item() == right


def test_what_has_no_tokens_or_too_many_is_refused(arrays, tmp_path):
    (inputs, labels, _), (new, new_labels, _) = arrays
    attended = Custom.from_arrays(
        inputs, labels, paths=(3,), test_inputs=new, test_labels=new_labels, folder=tmp_path
    )
    study = Study(attended, token_kernel="relu")
    with pytest.raises(StudyError, match="inputs are attentioned already; leave --token-kernel"):
        prepare_data(study, 0, array_library("numpy"))

    class InBlocks(SmallTask):
        def blocks(self, seed):
            return Blocks(24, 12, lambda number: self.realise(seed + number).train)

    with pytest.raises(StudyError, match="needs all training examples at once, but 24 come in"):
        prepare_data(Study(InBlocks(), token_kernel="erf"), 0, array_library("numpy"))
    with pytest.raises(ValueError, match="token_kernel must be one of linear, relu, erf"):
        Study(SmallTask(), token_kernel="tanh")


def test_results_that_need_more_are_refused(tmp_path):
    path = tmp_path / "study"
    sweep = {"examples": (4, 8)}
    run_study(Study(SmallTask(), token_kernel="relu", sweep=sweep, **GRID), path, analyses=())
    study = StoredStudy(path, Plugins(tasks={SmallTask.name: SmallTask}))
    with pytest.raises(ValueError, match="a study with --token-kernel relu does not compute"):
        list(missing_seeds(study, print))
    with pytest.raises(StudyError, match="the trained networks attend to bare tokens"):
        study_checkpoint(study)
