"""Sums by a tree of files: the same whoever computes them, and however often they are stopped."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pathkernel_core.statistics import SufficientStatistics
from pathkernel_datasets.tree_sums import tree_sum

PARTS = 7


def part(number):
    generator = np.random.default_rng(number)
    return SufficientStatistics.of(generator.normal(size=(5, 2, 3)), generator.normal(size=5))


def left(folder):
    return sorted(file.name for file in folder.iterdir())


class Telling(ThreadPoolExecutor):
    """Workers that note the size of what they hand back."""

    def submit(self, function, *arguments):
        future = super().submit(function, *arguments)
        self.results = [*getattr(self, "results", ()), future]
        return future


@pytest.mark.parametrize("workers", [None, 2])
def test_the_sum_of_all_parts(tmp_path, workers):
    told, path = [], tmp_path / "sums" / "all.npz"
    if workers is None:
        total = tree_sum(part, PARTS, path, report=told.append)
    else:
        with Telling(workers) as executor:
            total = tree_sum(part, PARTS, path, executor, told.append)
        assert len(executor.results) == 2 * PARTS - 1
        assert {future.result() for future in executor.results} == {None}  # nothing is gathered
    parts = [part(number) for number in range(PARTS)]
    pairs = [parts[0] + parts[1], parts[2] + parts[3], parts[4] + parts[5]]
    want = (pairs[0] + pairs[1]) + (pairs[2] + parts[6])
    np.testing.assert_array_equal(total.gram, want.gram)
    np.testing.assert_array_equal(total.projections, want.projections)
    assert (total.label_square, total.n_examples) == (want.label_square, 5 * PARTS)
    assert told == [*range(1, PARTS + 1)]
    assert left(path.parent) == ["all.npz"]
    assert tree_sum(part, PARTS, path, report=told.append).n_examples == 5 * PARTS
    assert len(told) == PARTS


@pytest.mark.parametrize("count", [1, 2, 3, 8, 13])
def test_any_number_of_parts(tmp_path, count):
    total = tree_sum(part, count, tmp_path / "all.npz")
    want = sum(part(number).gram for number in range(count))
    np.testing.assert_allclose(total.gram, want, rtol=0, atol=1e-13)
    assert total.n_examples == 5 * count


def test_a_sum_that_was_stopped_goes_on(tmp_path):
    computed, path = [], tmp_path / "all.npz"

    def stopped(number):
        if number == 5 and "stopped" not in computed:
            computed.append("stopped")
            raise KeyboardInterrupt
        computed.append(number)
        return part(number)

    with pytest.raises(KeyboardInterrupt):
        tree_sum(stopped, PARTS, path)
    assert left(tmp_path) == ["all-0-4.npz", "all-4-5.npz"]
    told = []
    total = tree_sum(stopped, PARTS, path, report=told.append)
    assert computed == [0, 1, 2, 3, 4, "stopped", 5, 6]
    assert told == [6, 7]
    whole = tree_sum(part, PARTS, tmp_path / "whole.npz")
    np.testing.assert_array_equal(total.gram, whole.gram)


def test_halves_that_a_killed_process_left_go_with_the_sum(tmp_path):
    tree_sum(part, PARTS, tmp_path / "all.npz")
    for name in ("all-0-4.npz", "all-4-7.npz", "other-0-4.npz"):
        (tmp_path / name).write_bytes(b"")
    assert tree_sum(part, PARTS, tmp_path / "all.npz").n_examples == 5 * PARTS
    assert left(tmp_path) == ["all.npz", "other-0-4.npz"]


def test_a_damaged_file_is_named(tmp_path):
    tree_sum(part, 1, tmp_path / "all-0-1.npz")
    (tmp_path / "all-1-2.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"all-1-2.npz' holds no sufficient statistics"):
        tree_sum(part, 2, tmp_path / "all.npz")
