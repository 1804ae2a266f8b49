"""Priors of the gains from the theory, on networks of six heads."""

import dataclasses
import sys

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="the benchmark is of PyTorch models")
pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
from torch import nn

import pathkernel as pk


@pytest.fixture(scope="module")
def model(checkout):
    """A transformer of 2 × 3 heads with three draws of 50 digits."""
    from benchmarks.heads.enumerated_sets import Shape, digit_model

    model = digit_model(Shape(2, 3, 6, 0), steps=30)
    return dataclasses.replace(model, drawn=50, sizes=(50, 20))


@pytest.fixture
def linear_problem():
    """Derivatives (P, H), outputs and targets (P,) and noise variance of a linear network."""
    generator = np.random.default_rng()
    slopes = generator.normal(size=(20, 5))
    targets = slopes.sum(axis=1) + generator.normal(size=20)
    factor = generator.normal(size=(4, 4))
    return slopes, targets, 0.3, factor @ factor.T + 0.1 * np.eye(4)


def form_of(slopes, targets, noise, gains):
    from pathkernel_pruning.heads.loss_form import LossForm

    errors = slopes @ gains - targets
    count = len(targets)
    gradient, form = 2 * slopes.T @ errors / count, 2 * slopes.T @ slopes / count
    return LossForm(gains, float(errors @ errors) / count, gradient, form, count, 2 * noise)


def test_the_evidence_is_that_of_a_linear_network(checkout, linear_problem):
    from scipy.stats import multivariate_normal

    from benchmarks.heads.gain_priors import log_evidence

    slopes, targets, noise, covariance = linear_problem
    left = np.array([True, True, False, True, True])
    form = form_of(slopes, targets, noise, left.astype(float))
    part = slopes[:, left]
    plain = noise * np.eye(len(targets))
    densities = [
        multivariate_normal(part.sum(axis=1), matrix).logpdf(targets)
        for matrix in (plain + part @ covariance @ part.T, plain)
    ]
    expected = densities[0] - densities[1]
    assert log_evidence(form, left, covariance) == pytest.approx(expected, rel=1e-8)


def test_a_refit_finds_the_posterior_mean_of_a_linear_network(checkout, linear_problem):
    from benchmarks.heads.gain_priors import refit

    slopes, targets, noise, covariance = linear_problem
    left = np.array([True, True, False, True, True])

    class Linear:
        def loss(self, gains):
            return form_of(slopes, targets, noise, gains).loss

        def form(self, gains):
            return form_of(slopes, targets, noise, gains)

    gains = refit(Linear(), Linear().form(left.astype(float)), left, covariance)
    part, precision = slopes[:, left], np.linalg.inv(covariance)
    posterior = part.T @ part / noise + precision
    mean = np.linalg.solve(posterior, part.T @ targets / noise + precision.sum(axis=1))
    np.testing.assert_allclose(gains[left], mean, rtol=1e-8)
    assert gains[2] == 0


@pytest.mark.filterwarnings("ignore:.*examples are few:RuntimeWarning")
def test_equal_variances_refit_as_refit_gains_does(model):
    from benchmarks.heads.gain_priors import VARIANCE, refit
    from benchmarks.heads.trials import Gained
    from pathkernel_pruning.live.gains import LiveNetwork

    batches, left = model.batches("validation", 0, 50), np.array([1, 0, 1, 1, 1, 1], dtype=bool)
    network = LiveNetwork(model.model, batches, model.outputs, model.loss)
    gains = refit(network, network.form(left.astype(float)), left, VARIANCE * np.eye(5))
    off = [Gained(model).heads[1]]
    expected = pk.refit_gains(model.model, batches, model.outputs, off, loss=model.loss)
    np.testing.assert_allclose(gains, expected.values, rtol=1e-6)
    assert not np.allclose(gains[left], 1)


def test_covariances_are_definite_and_of_one_scale(checkout):
    from benchmarks.heads.gain_priors import PRIORS, Picture, covariances, scale_to

    generator = np.random.default_rng()
    factors = generator.normal(size=(2, 6, 3))
    priors = covariances(Picture(*(factor @ factor.T for factor in factors)))
    assert tuple(priors) == PRIORS
    left = np.array([1, 1, 0, 1, 0, 1], dtype=bool)
    for covariance in priors.values():
        scaled = scale_to(covariance, left, 0.3)
        assert np.linalg.eigvalsh(scaled).min() > 0
        assert np.diag(scaled).mean() == pytest.approx(0.3)
    # the head that contributes most is held fast by the inverse alone
    sizes = np.diag(priors["U∘C̄"])
    assert np.argmax(sizes) == np.argmin(np.diag(priors["1 / diag U∘C̄"]))


class TwoWidths(nn.Module):
    def __init__(self):
        super().__init__()
        make = nn.TransformerEncoderLayer
        self.wide = make(8, 2, 8, dropout=0.0, batch_first=True)
        self.between = nn.Linear(8, 4)
        self.narrow = make(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, tokens):
        return self.narrow(self.between(self.wide(tokens))).mean(dim=(1, 2))


def test_layers_of_two_widths_are_pictures_of_their_own(checkout):
    from benchmarks.heads.gain_priors import tangent_picture
    from benchmarks.heads.models import HeadModel

    torch.manual_seed(0)
    module = TwoWidths().eval()
    batch = {"tokens": torch.randn(12, 3, 8), "labels": torch.randn(12)}
    model = HeadModel(
        *("two widths", "regression", module, "squared", (12, 12)),
        lambda batch: (module(batch["tokens"]), batch["labels"]),
        *({}, batch["labels"]),
    )
    picture = tangent_picture(model, [batch])
    assert picture.order_parameter.shape == (4, 4)
    for values in (picture.order_parameter, picture.mean_kernels):
        assert (values[:2, 2:] == 0).all()
        assert (values[2:, :2] == 0).all()
    for number, part in ((1, slice(2)), (2, slice(2, 4))):
        captured = pk.capture(
            *(module, [batch]), layers=[number], picture="tangent", outputs=model.outputs
        )
        kernels = pk.Problem(captured.xi, captured.labels).mean_kernels
        np.testing.assert_allclose(picture.mean_kernels[part, part], kernels)


def test_a_language_model_is_seen_by_its_prefixes(checkout):
    transformers = pytest.importorskip("transformers")
    from benchmarks.heads.gain_priors import _sequence_outputs
    from benchmarks.heads.models import HeadModel

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=64, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    module = transformers.GPT2LMHeadModel(config).eval()
    windows = torch.randint(20, (5, 65))
    batch = {"input_ids": windows[:, :-1], "labels": windows[:, 1:]}
    model = HeadModel(
        *("windows", "language model", module, "cross-entropy", (5, 5), None, {}, windows[:, 0]),
        theory=None,
    )
    prefixes, outputs = _sequence_outputs(model, [batch])
    logits = module(input_ids=windows[:, :-1]).logits
    for prefix in prefixes:
        last = prefix["input_ids"].shape[1] - 1
        z, y = outputs(prefix)
        kept = [(logits[:, last] - column[:, None]).abs().argmin(dim=1) for column in z.T]
        for column, symbols in zip(y.T, kept):
            symbol = int(symbols[0])
            assert (symbols == symbol).all()
            is_next = windows[:, last + 1] == symbol
            np.testing.assert_allclose(column + (windows[:, 1:] == symbol).float().mean(), is_next)


@pytest.mark.filterwarnings("ignore:.*examples are few:RuntimeWarning")
def test_the_table_compares_priors_with_equal_variances(model, tmp_path, monkeypatch):
    from benchmarks.heads import gain_priors

    monkeypatch.setitem(gain_priors.HEAD_MODELS, "small", lambda *_: model)
    monkeypatch.setattr(gain_priors, "DRAWS", 2)
    folders = ("--out", str(tmp_path / "out"), "--results", str(tmp_path))
    monkeypatch.setattr(
        *(sys, "argv", ["gain_priors", "--models", "small", "--cache", str(tmp_path), *folders])
    )
    gain_priors.main()
    frame = pd.read_csv(tmp_path / "gain_priors.csv")
    priors, scales = gain_priors.PRIORS, gain_priors.SCALES
    assert len(frame) == 2 * len(priors) * len(scales)
    assert set(frame["off"]) == {3, 4}
    first = frame[frame["prior"].astype(str) == priors[0]]
    assert (first[["difference", "error", "evidence"]] == 0).all(axis=None)
    assert (frame[frame["scale"] == scales[0]]["variance"] == gain_priors.VARIANCE).all()
    losses = frame.set_index(["off", "scale", "prior"])["loss"]
    for row in frame.itertuples():
        reference = losses[row.off, row.scale, priors[0]]
        assert row.loss - reference == pytest.approx(row.difference, abs=1e-4)
    with np.load(tmp_path / "out" / "small-draw1.npz") as arrays:
        evidence = arrays["evidence"]
        assert (evidence[..., 1] >= evidence[..., 0]).all()  # where the evidence chose the scale
        assert arrays["loss"].shape == (2, 4, 2, len(model.examples["test"]["labels"]))
    text = (tmp_path / "gain_priors.md").read_text(encoding="utf-8")
    assert all(f"| {prior} |" in text for prior in priors)
