"""The benchmark of linear attention: its task, its order parameter, and where that has risen."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("blackjax")
pytest.importorskip("arviz_stats")

from pathkernel_sampling.attention.models import attention_model


@pytest.fixture
def benchmark(checkout):
    from benchmarks.attention import linear as linear_attention

    return linear_attention


@pytest.fixture
def generator():
    return np.random.default_rng()


@pytest.fixture
def tokens(benchmark, generator):
    return int(generator.choice(list(benchmark.WIDTHS)))


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_sequences_of_zeros_change_the_evidence_by_a_constant(benchmark, tokens, kind, generator):
    padded = benchmark.copying(tokens, 5, kind, seed=int(generator.integers(100)))
    plain = dataclasses.replace(padded, inputs=padded.inputs[:5], labels=padded.labels[:5])
    position = generator.normal(size=padded.dimension)
    evidence, other = (p.evaluate(position).log_evidence for p in (padded, plain))
    room = len(padded.labels) - 5
    expected = -0.5 * room * np.log(2 * np.pi * benchmark.TEMPERATURE)
    assert evidence - other == pytest.approx(expected, rel=1e-6)


def test_smaller_sets_are_the_beginnings_of_larger_ones(benchmark, tokens):
    few, many = (benchmark.shifted_copies(tokens, count, 3, 20) for count in (6, 15))
    np.testing.assert_array_equal(few[0][:6], many[0][:6])
    np.testing.assert_array_equal(few[1][:6], many[1][:6])
    inputs, labels, places = many
    # the label is the content of the token before that whose place the last token has
    last = inputs[:15, -1, 1:].argmax(axis=1)
    np.testing.assert_array_equal(last - 1, places[:15])
    np.testing.assert_array_equal(inputs[np.arange(15), last - 1, 0], labels[:15])


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_the_overlap_is_one_where_a_head_attends_to_the_token_to_copy(benchmark, tokens, kind):
    model = attention_model("order-parameter", benchmark.copying(tokens, 5, kind, seed=0))
    products = np.zeros((1 + tokens, 1 + tokens))
    places = np.arange(1, tokens)
    products[places, places + 1] = 100.0  # key, then query
    position = np.zeros(model.dimension)
    position[-products.size :] = products.ravel()
    positions = np.stack([position, -position, 0 * position])
    drawn, of_places = benchmark.overlaps(model, positions, tokens)
    assert of_places.shape == (3, tokens - 1)
    np.testing.assert_allclose(of_places[0], 1, rtol=1e-6)
    assert drawn[0] == pytest.approx(1)
    if kind == "linear":  # a sign that the values undo
        assert drawn[1] == pytest.approx(1)
    else:
        assert drawn[1] < 0.1
        assert drawn[2] == pytest.approx((1 + tokens) ** -0.5)
    assert benchmark.prior_overlap(tokens, kind) < 0.5


def test_a_crossing_is_interpolated_along_the_logarithm(benchmark):
    examples = np.array([8, 16, 32, 64])
    assert benchmark.crossing(examples, np.array([0.1, 0.3, 0.7, 0.9]), 0.5) == pytest.approx(
        16 * 2**0.5
    )
    # the last of several
    assert benchmark.crossing(examples, np.array([0.1, 0.7, 0.3, 0.7]), 0.5) == pytest.approx(
        32 * 2**0.5
    )
    for values in ([0.6, 0.7, 0.8, 0.9], [0.1, 0.6, 0.2, 0.4]):
        assert np.isnan(benchmark.crossing(examples, np.array(values), 0.5))


def test_an_interrupted_run_resumes(benchmark, tmp_path, monkeypatch):
    runs = []

    def method(tokens, kind, seed):
        runs.append((tokens, kind, seed))
        if len(runs) == 3:
            raise KeyboardInterrupt
        for number, examples in enumerate((8, 16, 32)):
            yield examples, "theory", 0.3 + 0.3 * number, 0.1, 0.2, 0.1 * number, True

    monkeypatch.setitem(benchmark.METHODS, "theory", method)
    file = tmp_path / "rows.csv"
    with pytest.raises(KeyboardInterrupt):
        benchmark.measure(file, [4], ["theory"])
    assert len(pd.read_csv(file)) == 6
    frame = benchmark.measure(file, [4], ["theory"])
    # six runs, and that which was interrupted
    assert len(runs) == 7
    assert len(frame) == 18
    pd.testing.assert_frame_equal(
        benchmark.measure(file, [4], ["theory"]), frame, check_dtype=False
    )
    assert len(runs) == 7
    report = benchmark.write_report(frame)
    assert "| 4 | softmax | 16 | 0.60 ± 0.00 | 0.10 | 3 of 3 |" in report
    half, late = (
        16 * 2 ** ((share + (1 - share) * benchmark.prior_overlap(4, "softmax") - 0.6) / 0.3)
        for share in (0.5, 0.75)
    )
    numbers = f"{half:.1f} ± 0.0 | {late / half:.1f} ± 0.0 | 0.20 | 0.10"
    assert f"| 4 | 10 | softmax | {numbers} |" in report
