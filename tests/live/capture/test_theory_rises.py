"""What the theory's own predictor loses with captured heads, pair by pair of paths."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="capture is of PyTorch models")
import pathkernel_core as pk
from pathkernel_capture.captured import Captured
from pathkernel_capture.theory_rises import theory_rises
from pathkernel_core.paths.heads import head_label

TEMPERATURE = 0.3


def captured(members, skips=False, seed=0, examples=20):
    generator = np.random.default_rng(seed)
    paths = int(np.prod([len(layer) + skips for layer in members]))
    xi = generator.normal(size=(examples, paths, 4))
    labels = np.sign(xi[:, 1:3, 0].sum(axis=1) + generator.normal(size=examples))
    return Captured(xi, labels, members, np.zeros((1, 4)), np.ones(1), {}, skips)


SIDE_BY_SIDE = (((0, 0), (1, 1), (1, 2), (2, 1)),)
PRODUCT = (((2, 1), (2, 2)), ((5, 1), (5, 2)))


@pytest.mark.parametrize(("members", "skips"), [(SIDE_BY_SIDE, None), (PRODUCT, 0.6)])
def test_rises_are_those_of_the_three_predictors(members, skips):
    train, new = (captured(members, skips is not None, seed) for seed in (0, 1))
    network = pk.Network(train.heads, 6, variances=1.1, skips=skips)
    problem = pk.Problem(train.xi, train.labels)
    solution = pk.minimise_action(problem, network, TEMPERATURE)
    found = theory_rises(train, new, solution)
    scales = np.array(network.path_scales)
    paths, count = network.paths, network.n_paths

    def total(one, other, present):
        """Eq. 10, pair by pair of those paths that are there."""
        pairs = [(p, q) for p in present for q in present]
        weights = solution.order_parameter * np.outer(scales, scales)
        kernels = (weights[p, q] * pk.path_kernel(one, other, p, q) for p, q in pairs)
        return 1.1 / count * sum(kernels)

    noise, y = TEMPERATURE * np.eye(len(train.labels)), train.labels
    alpha = np.linalg.solve(total(train.xi, train.xi, range(count)) + noise, y)

    def error(mean):
        return np.mean((mean - new.labels) ** 2)

    whole = error(solution.predict_mean(new.xi))
    for layer, own in enumerate(members):
        for number, head in enumerate(own, start=1):
            if head == (0, 0):
                assert all(np.isnan(rises.sel(head=head_label(head))) for rises in found.values())
                continue
            left = [p for p, path in enumerate(paths) if path[layer] != number]
            anew = np.linalg.solve(total(train.xi, train.xi, left) + noise, y)
            kept = [
                [h for h in range(1, len(each) + 1) if (at, h) != (layer, number)]
                for at, each in enumerate(members)
            ]
            part = pk.minimise_action(
                pk.Problem(train.xi[:, left], y), network.keep_heads(kept), TEMPERATURE
            )
            means = {
                "restricted": total(new.xi, train.xi, left) @ alpha,
                "silenced": total(new.xi, train.xi, left) @ anew,
                "re-equilibrated": part.predict_mean(new.xi[:, left]),
            }
            for way, mean in means.items():
                assert float(found[way].sel(head=head_label(head))) == pytest.approx(
                    error(mean) - whole, abs=1e-8
                )
    fixed = theory_rises(train, new, solution, equilibrate=False)
    assert set(fixed) == {"restricted", "silenced"}


def test_nothing_is_predicted_without_the_only_head_of_a_layer():
    members = (((1, 1),), ((2, 1), (2, 2)))
    train, new = captured(members, seed=0), captured(members, seed=1)
    network = pk.Network(train.heads, 6)
    problem = pk.Problem(train.xi, train.labels)
    solution = pk.minimise_action(problem, network, TEMPERATURE)
    whole = np.mean((solution.predict_mean(new.xi) - new.labels) ** 2)
    for rises in theory_rises(train, new, solution).values():
        assert float(rises.sel(head="1-1")) == pytest.approx(
            np.mean(new.labels**2) - whole, abs=1e-8
        )
        assert np.isfinite(rises.sel(head=["2-1", "2-2"])).all()


def test_refused():
    train = captured(SIDE_BY_SIDE)
    problem = pk.Problem(train.xi, train.labels)
    solution = pk.minimise_action(problem, pk.Network(train.heads, 6), TEMPERATURE)
    with pytest.raises(ValueError, match="validation holds heads"):
        theory_rises(train, captured(PRODUCT), solution)
    with pytest.raises(ValueError, match="validation is scaled differently from the training"):
        theory_rises(train, train.scale_tokens(3), solution)
    with pytest.raises(ValueError, match=r"solution is of heads \(4,\), but these are \(2, 2\)"):
        theory_rises(captured(PRODUCT), captured(PRODUCT), solution)
