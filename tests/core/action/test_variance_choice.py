"""Prior variance chosen by the evidence, with its curve."""

import numpy as np
import pytest

import pathkernel_core as pk


def problem(likelihood="softmax"):
    xi = np.random.default_rng(0).normal(size=(30, 2, 5))
    labels = xi[:, 0, :3].argmax(axis=1)
    if likelihood == "squared":
        labels = np.sign(xi[:, 0, 0])
    return pk.Problem(xi, labels, likelihood=likelihood)


@pytest.mark.parametrize(("likelihood", "temperature"), [("softmax", None), ("squared", 0.3)])
def test_the_curve_is_that_of_single_minimisations(likelihood, temperature):
    outputs = 3 if likelihood == "softmax" else 1
    network = pk.Network((2,), 20, (5.0, 1.2, 0.8), outputs=outputs)
    seen = []
    choice = pk.choose_variance(
        problem(likelihood), network, temperature, variances=[30, 0.3, 3], report=seen.append
    )
    assert [step.done for step in seen] == [0, 1, 2, 3]
    assert list(choice.variances) == [0.3, 3, 30]
    for variance, evidence, limit in zip(
        choice.variances, choice.log_evidence, choice.log_evidence_gp
    ):
        single = pk.Network((2,), 20, (variance, 1.2, 0.8), outputs=outputs)
        arguments = problem(likelihood), single, temperature
        expected = pk.minimise_action(*arguments).log_evidence
        assert evidence == pytest.approx(expected, abs=1e-8)
        assert limit == pytest.approx(pk.gp_limit(*arguments).log_evidence, abs=1e-10)
    assert choice.variance == choice.variances[choice.log_evidence.argmax()]
    assert choice.solution.network.variances == (choice.variance, 1.2, 0.8)
    assert choice.is_edge is (choice.variance in (0.3, 30))


def test_the_limit_decides_where_the_evidence_is_undefined():
    choice = pk.choose_variance(problem(), pk.Network((2,), 3, outputs=3), variances=[0.1, 1, 10])
    assert np.isnan(choice.log_evidence).all()
    assert choice.variance == choice.variances[choice.log_evidence_gp.argmax()]


def test_wrong_arguments_are_named():
    network = pk.Network((2,), 20, outputs=3)
    for variances, message in (([], "variances is empty"), ([1, -1], "each of variances must be")):
        with pytest.raises(ValueError, match=message):
            pk.choose_variance(problem(), network, variances=variances)
    with pytest.raises(ValueError, match="temperature must be left out"):
        pk.choose_variance(problem(), network, 0.1)
