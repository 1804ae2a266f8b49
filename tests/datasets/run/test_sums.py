"""Sums over examples in blocks: the same whoever computes them, however often they are stopped."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from pathkernel_core.energy.statistics import SufficientStatistics
from pathkernel_datasets.errors import StudyWarning, TaskError
from pathkernel_datasets.folder.piece_files import write_arrays
from pathkernel_datasets.folder.study_folder import StudyFolder
from pathkernel_datasets.run.sums import is_summed, sum_examples, sum_part
from pathkernel_datasets.study.identity import identity_of
from pathkernel_datasets.study.prepared import array_library
from pathkernel_datasets.testing import SMALL_STUDY

IDENTITY = json.dumps(identity_of(SMALL_STUDY))
NUMPY = array_library("numpy", "float64")


def block(number, library):
    generator = np.random.default_rng(number)
    return generator.normal(size=(5, 2, 3)), generator.normal(size=5)


def data(blocks, drawn=None, stop=None):
    """Data of so many blocks, which notes those that are drawn."""

    def tell(number, library):
        if number == stop:
            raise KeyboardInterrupt
        if drawn is not None:
            drawn.append(number)
        return block(number, library)

    xi = np.zeros((1, 2, 3))
    return SimpleNamespace(n_examples=5 * blocks, n_blocks=blocks, block=tell, xi=xi)


def total(folder, data, report=lambda progress: None):
    return sum_examples(StudyFolder(folder, IDENTITY), 0, data, NUMPY, report)


@pytest.mark.parametrize("blocks", [1, 16, 17, 100])
def test_the_sum_of_all_blocks(tmp_path, blocks):
    drawn, told = [], []
    sums = total(tmp_path, data(blocks, drawn), told.append)
    whole = SufficientStatistics.of_batches(block(number, NUMPY) for number in range(blocks))
    np.testing.assert_allclose(sums.gram, whole.gram, atol=1e-12)
    np.testing.assert_allclose(sums.projections, whole.projections, atol=1e-12)
    assert (sums.n_examples, drawn) == (5 * blocks, list(range(blocks)))
    assert told[-1].doing.startswith("seed 0: ")
    again = total(tmp_path, data(blocks, stop=0))
    np.testing.assert_array_equal(again.gram, sums.gram)


def test_a_sum_that_was_stopped_resumes_to_the_same_sum(tmp_path):
    whole, drawn = total(tmp_path / "whole", data(100)), []
    with pytest.raises(KeyboardInterrupt):
        total(tmp_path, data(100, drawn, stop=40))
    sums = total(tmp_path, data(100, drawn))
    assert drawn == [*range(40), *range(32, 100)]
    np.testing.assert_array_equal(sums.gram, whole.gram)


def test_parts_that_workers_have_summed_are_taken(tmp_path):
    for number in range(7):
        sum_part(StudyFolder(tmp_path, IDENTITY), 0, data(100), NUMPY, number)
    sums = total(tmp_path, data(100, stop=0))
    np.testing.assert_array_equal(sums.gram, total(tmp_path / "whole", data(100)).gram)


def test_a_damaged_sum_is_summed_again(tmp_path):
    sums = total(tmp_path, data(20))
    file = tmp_path / "sums" / "seed-0.npz"
    file.write_bytes(file.read_bytes()[:-1])
    shutil.rmtree(tmp_path / "pieces")  # as when the study is published
    with pytest.warns(StudyWarning, match=r"seed-0\.npz is damaged; a run computes it again"):
        assert not is_summed(StudyFolder(tmp_path, IDENTITY), 0)
    with pytest.warns(StudyWarning, match=r"seed-0\.npz is damaged"):
        again = total(tmp_path, data(20))
    np.testing.assert_array_equal(again.gram, sums.gram)


@pytest.mark.parametrize(
    "other",
    [
        {"gram": np.zeros((2, 3))},
        {"gram": np.zeros((1, 1, 1, 1)), "projections": np.zeros((1, 1, 1))},
        {"n_examples": "many"},
        {"further": 1},
    ],
)
def test_sums_of_other_shapes_are_named_and_summed_again(tmp_path, other):
    sums, folder = total(tmp_path, data(3)), StudyFolder(tmp_path, IDENTITY)
    names = ("gram", "projections", "label_square", "n_examples")
    values = {name: getattr(sums, name) for name in names} | other
    write_arrays(tmp_path / "sums" / "seed-0.npz", values, folder.core)
    with pytest.warns(StudyWarning, match=r"seed-0\.npz holds other sums than those of the study"):
        again = total(tmp_path, data(3))
    np.testing.assert_array_equal(again.gram, sums.gram)


def test_blocks_that_hold_another_number_of_examples_are_refused(tmp_path):
    wrong = data(20)
    wrong.n_examples = 99
    with pytest.raises(TaskError, match="hold 100 examples instead of 99"):
        total(tmp_path, wrong)
