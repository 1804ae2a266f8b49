"""Sentences about several minima in the caption of a study's table."""

import numpy as np
import pytest

from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_tasks.hidden_markov import HiddenMarkov
from pathkernel_views.minima import minima_sentences


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    task = HiddenMarkov(examples=100, test_examples=10)
    study = Study(task, widths=(20, 50), temperatures=(0.01,), seeds=(0,), variances=0.05)
    return run_study(study, tmp_path_factory.mktemp("minima") / "study", analyses=()).load()


def test_points_with_several_minima_and_small_kernels_are_named(dataset):
    several, small = minima_sentences(dataset)
    assert (
        "Several minima of the action at N = 20, T = 0.01, seed 0; N = 50, T = 0.01, seed 0"
        in several
    )
    assert "T = 0.01" in small
    assert "less than 1 %" in small
    assert (dataset["minima"] > 1).all()
    assert (dataset["action_gap"] > 0).all()


def test_a_crossing_is_told(dataset):
    crossing = dataset.assign(action_gap=0 * dataset["action_gap"] + 1e-3)
    assert any("Within 10 nats" in sentence for sentence in minima_sentences(crossing))


def test_nothing_is_said_of_one_minimum(dataset):
    plain = dataset.assign(
        minima=0 * dataset["minima"] + 1,
        action_gap=np.nan * dataset["action_gap"],
        explained_share_gp=0 * dataset["explained_share_gp"] + 0.5,
    )
    assert minima_sentences(plain) == []
