"""What the theory loses with single heads, against its definitions pair by pair."""

from types import SimpleNamespace

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.paths.heads import every_head, head_label, kept_heads
from pathkernel_core.prediction.removed_heads import PREDICTIONS
from pathkernel_datasets.results.point import Point, PointData
from pathkernel_datasets.study.prepared import PreparedData
from pathkernel_trained.scores import SCORES, ScoreSources
from pathkernel_trained.theory_drops import theory_drops

HEADS, TEMPERATURE = (2, 3, 1), 0.2
REMOVABLE = [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
NETWORK = pk.Network(HEADS, 8, variances=1.2)


def problem(validation):
    generator = np.random.default_rng(2)
    teacher = generator.normal(size=(6, 5))

    def draw(count):
        xi = generator.normal(size=(count, 6, 5))
        noise = generator.normal(size=count)
        return xi, np.sign(np.einsum("pni,ni->p", xi, teacher) + 2 * noise)

    tests = {"near": draw(200), "far": draw(30)}
    held_out = draw(40) if validation else None
    return PreparedData(None, NETWORK, *draw(30), tests, held_out)


@pytest.fixture(scope="module", params=[True, False], ids=["validation", "training"])
def data(request):
    return problem(request.param)


@pytest.fixture(scope="module")
def solution(data):
    return pk.minimise_action(pk.Problem(data.xi, data.labels), NETWORK, TEMPERATURE)


@pytest.fixture(scope="module")
def drops(data, solution):
    point_data = PointData(Point(8, TEMPERATURE, 0), NETWORK, data)
    return theory_drops(point_data, solution.order_parameter, ("near", "absent", "far"))


def through(head):
    """Whether paths pass through a head, by their names."""
    layer, number = head
    return np.array([path[layer - 1] == number for path in NETWORK.paths])


def total(first, second, weights):
    """Eq. 10, pair by pair of paths; layers are normalised by all of their heads."""
    pairs = [
        weights[p, q] * pk.path_kernel(first, second, p, q) for p in range(6) for q in range(6)
    ]
    return 1.2 / 6 * sum(pairs)


def means_without(data, solution, head, new):
    """Means of the three predictors for new examples, by their definitions."""
    xi, y = data.xi, data.labels
    noise = TEMPERATURE * np.eye(len(y))
    alpha = np.linalg.solve(total(xi, xi, solution.order_parameter) + noise, y)
    silent = np.where(through(head), 0, 1)
    weights = solution.order_parameter * np.outer(silent, silent)
    refitted = np.linalg.solve(total(xi, xi, weights) + noise, y)
    paths = np.flatnonzero(silent)
    network = NETWORK.keep_heads(kept_heads(HEADS, [head]))
    part = pk.minimise_action(pk.Problem(xi[:, paths], y), network, TEMPERATURE)
    return {
        "silenced": total(new, xi, weights) @ refitted,
        "restricted": total(new, xi, weights) @ alpha,
        "re-equilibrated": part.predict_mean(new[:, paths]),
    }


def test_losses_are_those_of_the_three_predictors(data, solution, drops):
    for name, (new, labels) in data.test_sets.items():
        right = solution.predict_mean(new) * labels > 0
        losses = drops.sel(test_set=name)
        assert losses["theory_accuracy"].item() == pytest.approx(right.mean())
        for head in REMOVABLE:
            for prediction, mean in means_without(data, solution, head, new).items():
                lost = right.astype(float) - (mean * labels > 0)
                actual = losses.sel(prediction=prediction, head=head_label(head))
                assert actual["theory_drop"].item() == pytest.approx(lost.mean())
                error = lost.std() / np.sqrt(len(lost))
                assert actual["theory_drop_error"].item() == pytest.approx(error)
    assert len(np.unique(drops["theory_drop"].sel(test_set="near").values)) > 6


def error_scores(drops):
    network = SimpleNamespace(shape=SimpleNamespace(heads_per_layer=HEADS))
    sources = ScoreSources(None, (), {}, drops, network, None)
    scores = [score.compute(sources) for score in SCORES if score.name in PREDICTIONS]
    return {name: rises for scored in scores for name, rises in scored.items()}


def test_the_error_rises_on_validation_or_training_examples(data, solution, drops):
    """And the scores of heads are how much it does."""
    new, labels = data.validation or (data.xi, data.labels)
    means = means_without(data, solution, (2, 3), new)
    before = np.mean((solution.predict_mean(new) - labels) ** 2)
    scores = error_scores(drops)
    assert list(scores) == list(means)
    for prediction, mean in means.items():
        rise = np.mean((mean - labels) ** 2) - before
        by_head = dict(zip(every_head(HEADS), *scores[prediction], strict=True))
        assert by_head[2, 3] == pytest.approx(rise, rel=1e-5)
        assert np.isnan(by_head[3, 1]), "the only head of its layer"
    failed = drops.copy(deep=True)
    failed["theory_error_rise"].loc[{"prediction": "re-equilibrated", "head": "1-1"}] = np.nan
    assert list(error_scores(failed)) == ["silenced", "restricted"]


def test_what_there_is_not_is_not_known(drops):
    assert drops.sel(test_set="absent")["theory_drop"].isnull().all()
    assert drops.sel(test_set="absent")["theory_accuracy"].isnull()
    are_finite = drops["theory_drop"].sel(test_set="near").notnull().all("prediction")
    for layer, head in every_head(HEADS):
        expected = (layer, head) in REMOVABLE
        assert are_finite.sel(head=head_label((layer, head))).item() == expected
