"""The loss to second order in gains, refitted gains, and the choice of heads."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from pathkernel_pruning.heads.gain_choice import choose_heads_by_gains
from pathkernel_pruning.heads.gain_network import STEPS, refit_remaining_gains
from pathkernel_pruning.heads.head_groups import HeadGroups
from pathkernel_pruning.heads.loss_form import (
    FormSums,
    LossForm,
    apply_curvature,
    loss_slopes,
    loss_values,
)

HEADS = 6


@dataclass
class LinearNetwork:
    """A network of one layer: outputs are linear in the gains of its heads."""

    parts: np.ndarray  # (P, C, H)
    targets: np.ndarray
    loss_name: str = "squared"
    heads: tuple = (HEADS,)
    calls: list = field(default_factory=list)

    def outputs(self, gains):
        return self.parts @ gains

    @property
    def passes(self):
        return len(self.calls)

    def losses(self, gains):
        self.calls.append("loss")
        return loss_values(self.outputs(gains), self.targets)

    def loss(self, gains):
        return float(self.losses(gains).mean())

    def slope(self, gains):
        self.calls.append("slope")
        slopes = loss_slopes(self.outputs(gains), self.targets)
        return self.losses(gains), np.einsum("pch,pc->h", self.parts, slopes) / len(slopes)

    def form(self, gains):
        self.calls.append("form")
        outputs, sums = self.outputs(gains), FormSums(gains, self.loss_name)
        slopes = loss_slopes(outputs, self.targets)
        gradient = np.einsum("pch,pc->h", self.parts, slopes)
        product = apply_curvature(outputs, self.targets, self.parts)
        sums.add(outputs, self.targets, gradient, np.einsum("pch,pcg->hg", self.parts, product))
        return sums.result()


def network(loss="squared", examples=40, classes=3, seed=0, heads=(HEADS,)):
    generator = np.random.default_rng(seed)
    parts = generator.normal(size=(examples, classes, sum(heads))) / 2
    targets = generator.normal(size=(examples, classes))
    if loss == "cross-entropy":
        targets = generator.integers(classes, size=examples)
    return LinearNetwork(parts, targets, loss, heads)


def test_the_form_is_exact_for_every_set_of_one_layer():
    made = network()
    form = made.form(np.ones(HEADS))
    whole = made.loss(np.ones(HEADS))
    for present in itertools.product([0.0, 1.0], repeat=HEADS):
        gains = np.array(present)
        rise = made.loss(gains) - whole
        assert form.rise(gains == 0) == pytest.approx(rise, abs=1e-12)
        assert form.move_to(gains).loss == pytest.approx(whole + rise, abs=1e-12)
    singles = [form.rise(np.eye(HEADS, dtype=bool)[head]) for head in range(HEADS)]
    np.testing.assert_allclose(form.rises(), singles)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_derivatives_of_losses_are_differences(loss):
    made, step = network(loss), 1e-5
    gains = np.linspace(0.5, 1.5, HEADS)
    form, moves = made.form(gains), step * np.eye(HEADS)
    slopes = [(made.loss(gains + move) - made.loss(gains - move)) / (2 * step) for move in moves]
    np.testing.assert_allclose(form.gradient, slopes, rtol=1e-6)
    # outputs are linear in the gains, so that the form is the whole second derivative
    curvature = [
        (made.form(gains + move).gradient - made.form(gains - move).gradient) / (2 * step)
        for move in moves
    ]
    np.testing.assert_allclose(form.form, curvature, rtol=1e-5, atol=1e-8)


def test_losses_are_those_of_scipy():
    made = network("cross-entropy")
    outputs = made.outputs(np.ones(HEADS))
    chosen = np.take_along_axis(log_softmax(outputs, axis=1), made.targets[:, None], axis=1)
    np.testing.assert_allclose(loss_values(outputs, made.targets), -chosen[:, 0])
    slopes = softmax(outputs, axis=1)
    slopes[range(len(slopes)), made.targets] -= 1
    np.testing.assert_allclose(loss_slopes(outputs, made.targets), slopes)
    huge = np.array([[1e4, -1e4], [0.0, 1e4]])
    np.testing.assert_allclose(loss_values(huge, np.array([0, 0])), [0, 1e4])


def posterior_energy(made, gains, form, prior_variance):
    data = len(made.targets) * made.loss(gains) / form.temperature
    return data + np.sum((gains - 1) ** 2) / (2 * prior_variance)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
@pytest.mark.parametrize("prior_variance", [0.03, 0.3])
def test_refitted_gains_are_the_mode_of_the_posterior(loss, prior_variance):
    made, start = network(loss), np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    left, form = start != 0, made.form(start)

    def energy(free):
        gains = start.copy()
        gains[left] = free
        return posterior_energy(made, gains, form, prior_variance)

    mode = minimize(energy, start[left], tol=1e-12).x
    if loss == "squared":  # whose posterior is normal: one step
        gains = form.refit_gains(left, prior_variance)
        assert form.temperature == pytest.approx(2 * made.loss(start) / 3)
    else:
        gains = refit_remaining_gains(made, start, prior_variance, steps=4).gains
    np.testing.assert_allclose(gains[left], mode, atol=1e-5)
    assert (gains[~left] == 0).all()


def test_a_narrow_prior_keeps_gains_and_a_wide_one_fits():
    made, gains = network(), np.ones(HEADS)
    form, left = made.form(gains), np.ones(HEADS, dtype=bool)
    np.testing.assert_allclose(form.refit_gains(left, 1e-12), gains, atol=1e-8)
    fitted, *_ = np.linalg.lstsq(made.parts.reshape(-1, HEADS), made.targets.ravel())
    np.testing.assert_allclose(form.refit_gains(left, 1e12), fitted, rtol=1e-6)


def test_a_network_without_error_keeps_its_gains():
    made = network()
    made.targets = made.outputs(np.ones(HEADS))
    form = made.form(np.ones(HEADS))
    assert form.temperature > 0
    np.testing.assert_allclose(form.refit_gains(np.ones(HEADS, dtype=bool), 0.3), np.ones(HEADS))


@pytest.mark.parametrize("error", [0.0, 0.1, 0.5])
def test_the_noise_is_the_error_or_a_twentieth_of_the_targets(error):
    """In several batches: T = 2 max(Σ(z − y)², 0.05 Σ y²) over the number of targets."""
    generator, gains = np.random.default_rng(0), np.ones(HEADS)
    targets = 3 * generator.normal(size=(30, 2))
    outputs = targets * (1 + error)
    sums = FormSums(gains, "squared")
    for part in (slice(0, 10), slice(10, 30)):
        sums.add(outputs[part], targets[part], 0 * gains, np.zeros((HEADS, HEADS)))
    share = max(error**2, 0.05)
    assert sums.result().temperature == pytest.approx(2 * share * (targets**2).mean())


def test_targets_of_zero_without_error_have_a_positive_noise():
    sums = FormSums(np.ones(HEADS), "squared")
    sums.add(np.zeros((4, 1)), np.zeros((4, 1)), np.zeros(HEADS), np.zeros((HEADS, HEADS)))
    assert sums.result().temperature > 0


@pytest.mark.parametrize("refits", [False, True])
def test_progress_of_a_choice_counts_the_heads_that_are_chosen(refits):
    reports = []
    made = network(heads=(3, 3))
    choice = choose_heads_by_gains(
        made, 5, trials=0, refits=refits, prior_variance=0.3, report=reports.append
    )
    seen = [(report.done, report.total) for report in reports if "order" in report.doing]
    renewals = [number for number, is_new in enumerate(choice.renewed) if is_new]
    assert len(renewals) > 1
    assert seen == [(number, 5) for number in renewals]
    refitting = [(report.done, report.total) for report in reports if "refit" in report.doing]
    assert [report.doing for report in reports[len(seen) :]] == ["refitting gains"] * len(refitting)
    assert refitting in ([(0, 1)], [(0, STEPS), (1, STEPS)]) if refits else not refitting


def test_progress_of_a_refit_counts_its_steps():
    reports = []
    refit_remaining_gains(network(), np.ones(HEADS), 0.3, steps=3, report=reports.append)
    assert [(report.done, report.total) for report in reports] == [(0, 3), (1, 3), (2, 3)]


def chosen(made, count, **options):
    settings = {"trials": 0, "refits": False, "prior_variance": 0.3} | options
    choice = choose_heads_by_gains(made, count, **settings)
    return choice.heads, choice


def test_heads_of_one_layer_are_those_of_the_greedy_search_on_the_loss():
    made = network(seed=3)
    heads, choice = chosen(made, 4)
    gains, order = np.ones(HEADS), []
    while len(order) < 4:
        losses = [made.loss(np.where(np.arange(HEADS) == h, 0, gains)) for h in range(HEADS)]
        order.append(min((h for h in range(HEADS) if gains[h]), key=losses.__getitem__))
        gains[order[-1]] = 0
    assert heads == order
    assert choice.expected[-1] == pytest.approx(made.loss(gains), abs=1e-12)
    np.testing.assert_array_equal(choice.gains, gains)


def test_redundant_heads_do_not_both_go():
    made = network(seed=1)
    made.parts[..., 1] = made.parts[..., 0]  # either can go, for the other
    made.targets = made.parts @ np.array([1.0, 1.0, 0.1, 0.1, 0.1, 0.1])
    scores = made.form(np.ones(HEADS)).rises()
    assert scores[0] == pytest.approx(scores[1])
    heads, _ = chosen(made, 5, refits=True)
    assert len({0, 1} & {*heads}) == 1


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(HEADS)), st.integers(0, 3), st.booleans())
def test_the_choice_does_not_depend_on_labels(order, trials, refits):
    made = network("cross-entropy", seed=2)
    other = LinearNetwork(made.parts[..., list(order)], made.targets, "cross-entropy")
    heads, choice = chosen(made, 4, trials=trials, refits=refits)
    relabelled, others = chosen(other, 4, trials=trials, refits=refits)
    assert [order[head] for head in relabelled] == heads
    np.testing.assert_allclose(others.gains, choice.gains[list(order)], atol=1e-10)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("trials", [1, 2, HEADS])
def test_trials_change_nothing_where_the_form_is_exact(trials, seed):
    heads, choice = chosen(network(seed=seed), 4, trials=trials)
    by_form, expected = chosen(network(seed=seed), 4)
    assert heads == by_form
    np.testing.assert_allclose(choice.expected, expected.expected)


def test_trials_find_what_the_form_underrates():
    class Bent(LinearNetwork):
        """Head 0 has a small derivative, but is needed."""

        def outputs(self, gains):
            bent = gains.copy()
            bent[0] = 1 - 3 * (1 - gains[0]) ** 2
            return super().outputs(bent)

        def form(self, gains):
            parts, self.parts = self.parts, self.parts.copy()
            self.parts[..., 0] *= 6 * (1 - gains[0])
            made = super().form(gains)
            self.parts = parts
            return made

    made = network(seed=4)
    bent = Bent(made.parts, made.parts @ np.ones(HEADS))
    assert chosen(bent, 1)[0] == [0]
    assert chosen(bent, 1, trials=2)[0] != [0]
    assert bent.calls.count("loss") == 3


@pytest.mark.parametrize(("keeps_layers", "left"), [(True, [1, 1]), (False, [0, 2])])
def test_layers_keep_a_head_if_they_must(keeps_layers, left):
    made = network(heads=(2, 4))
    made.parts[..., :2] *= 1e-3  # the first layer does next to nothing
    made.targets = made.outputs(np.ones(6))
    groups = HeadGroups(made.heads, made.heads, keeps_layers)
    choice = choose_heads_by_gains(
        made, 4, trials=0, refits=False, prior_variance=1.0, groups=groups
    )
    gains = choice.gains
    assert np.count_nonzero(gains[:2]) == left[0]
    assert np.count_nonzero(gains) == 2


def test_sums_of_batches_are_those_of_all_examples():
    made = network(examples=30)
    gains = np.ones(HEADS)
    whole, sums = made.form(gains), FormSums(gains, "squared")
    for part in np.split(np.arange(30), [7, 20]):
        outputs, targets = made.outputs(gains)[part], made.targets[part]
        slopes = made.parts[part]
        gradient = np.einsum("pch,pc->h", slopes, loss_slopes(outputs, targets))
        product = apply_curvature(outputs, targets, slopes)
        sums.add(outputs, targets, gradient, np.einsum("pch,pcg->hg", slopes, product))
    result = sums.result()
    assert isinstance(result, LossForm)
    np.testing.assert_allclose(result.form, whole.form)
    np.testing.assert_allclose(result.gradient, whole.gradient)
    assert result.temperature == pytest.approx(whole.temperature)
