"""Learned attention of a study: draws that resume, order of heads, views, and refusals."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("blackjax")
pytest.importorskip("arviz_stats")

import xarray as xr

import pathkernel_core as pk
from pathkernel.main import main
from pathkernel_core.paths.order_parameter import head_scores
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.lock import lock_folder
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.results.result_files import publish_parts
from pathkernel_datasets.results.run_result import run_result
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_sampling.attention.attend import (
    attention_chains,
    order_of_paths,
    orders_of_heads,
)
from pathkernel_sampling.attention.mass_views import crossings, mass_views
from pathkernel_sampling.attention.mode_values import missed_modes
from pathkernel_sampling.attention.stage_values import warnings
from pathkernel_sampling.attention.tempered import arrays_of_start, chains_of, start_chains
from pathkernel_sampling.attention.views import attention_warnings
from pathkernel_sampling.chains.ensemble import Ensemble
from pathkernel_sampling.chains.store import SampleRun, open_run
from pathkernel_sampling.results import LearnedAttention
from pathkernel_tasks.single_location import SingleLocation
from pathkernel_views.chart import Chart
from pathkernel_views.table import Table

SETTINGS = {
    "widths": (10,),
    "chains": 2,
    "warm_up": 30,
    "thin": 5,
    "random_heads": 2,
    "starts": 1,
}
RUN = "attention/key-vectors-by-order-parameter/seed-0_T-0.1_N-10"


class Killed(BaseException):
    """As little to be caught as a signal."""


def make_study(path, **options):
    task = SingleLocation(examples=20, test_examples=30, tokens=5, token_width=4)
    run_study(Study(task, [10], **options), path)
    return path


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    path = make_study(tmp_path_factory.mktemp("attend") / "study")
    run_result(LearnedAttention(**SETTINGS, draws=20), path)
    return path


def test_a_killed_run_resumes_with_the_same_draws(sampled, tmp_path, monkeypatch):
    path = make_study(tmp_path / "study")
    append, calls = SampleRun.append, []

    def kill_after_one(*arguments):
        append(*arguments)
        calls.append(None)
        if len(calls) == 1:
            raise Killed

    monkeypatch.setattr(SampleRun, "append", kill_after_one)
    with pytest.raises(Killed):
        run_result(LearnedAttention(**SETTINGS, draws=20), path)
    assert open_run(StoredStudy(path), RUN)["posterior"].sizes["draw"] < 20
    run_result(LearnedAttention(**SETTINGS, draws=20), path)
    groups = "posterior", "predictions", "attention", "random_heads", "tempering", "modes", "maxima"
    for group in groups:
        first, second = (
            open_run(StoredStudy(folder), RUN)[group].to_dataset() for folder in (sampled, path)
        )
        xr.testing.assert_identical(first.load(), second.load())


def test_chains_of_a_run_start_in_threads_as_one_after_the_other(sampled):
    """They share mixtures: what one has drawn reaches the others whoever runs them."""
    study = StoredStudy(sampled)
    point, settings = study.point(10.0), LearnedAttention(**SETTINGS, draws=20)
    ensemble = Ensemble(2, 2, map, settings.chains_of(study, point))
    reports = []
    with ensemble:
        states = ensemble.warm_up(30, reports.append)
    keys = [ensemble.chains.key(chain, 0) for chain in range(2)]
    starts = start_chains(ensemble.chains.model, keys, 30)
    for state, start in zip(states, starts):
        expected = arrays_of_start(start)
        assert state.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(state[name], values, err_msg=name)
    assert reports[-1] == 60
    assert reports == sorted(reports)
    assert len(set(reports)) > 5  # pilots, and every stage


def test_a_run_has_what_arviz_and_readers_expect(sampled):
    run = open_run(StoredStudy(sampled), RUN)
    posterior = run["posterior"]
    assert posterior["order_parameter"].sizes == {"chain": 2, "draw": 20, "path": 2, "path_dual": 2}
    assert posterior["attended_tokens"].dims == ("chain", "draw", "head")
    assert (posterior["attended_tokens"] >= 1).all()
    assert (posterior["attended_tokens"] <= 5 + 1e-9).all()
    attention = run["attention"]["attention"]
    assert attention.dims == ("head", "example", "token")
    np.testing.assert_allclose(attention.sum("token"), 1, rtol=1e-12)
    assert run["random_heads"]["accuracy"].sizes == {"random": 2, "test_set": 1}
    u = posterior["order_parameter"].values
    assert (u[..., 0, 0] >= u[..., 1, 1]).all()  # heads by decreasing score
    assert json.loads(run.attrs["settings"])["form"] == "key-vectors"


def test_modes_have_masses_evidence_and_maxima(sampled):
    run = open_run(StoredStudy(sampled), RUN)
    modes, stages = run["modes"].load(), run["tempering"].load()
    assert float(modes["mass"].sum()) == pytest.approx(1)
    np.testing.assert_allclose(modes["mass_of_chain"].sum("mode"), 1, rtol=1e-12)
    np.testing.assert_allclose(modes["attention"].sum("token"), 1, rtol=1e-12)
    assert all(len(name.split(" + ")) == 2 for name in modes["name"].values)
    evidence = float(run["adaptation"]["log_evidence"])
    total = evidence + np.log(np.exp(modes["log_evidence"] - evidence).sum())
    assert float(total) == pytest.approx(evidence)
    of_chains = stages["log_evidence"].sel(stage="draws")
    assert of_chains.min() <= evidence <= of_chains.max()
    assert (stages["stages"] >= 2).all()
    assert ((stages["smallest_swap"] > 0) & (stages["smallest_swap"] <= 1)).all()
    assert int(run["maxima"]["starts"].sum()) == 1
    assert run["maxima"]["mode_of_maximum"].isin(modes["mode"]).all()


def test_single_chains_are_a_choice(sampled):
    settings = LearnedAttention(**SETTINGS, method="nuts")
    study = StoredStudy(sampled)
    point = study.point(10.0)
    assert settings.run_name(point) != LearnedAttention(**SETTINGS).run_name(point)
    build, *arguments = settings.chains_of(study, point)
    assert type(build(*arguments)).__name__ == "AttentionChains"
    assert not LearnedAttention(**SETTINGS, sampler="marginal").is_tempered
    with pytest.raises(ValueError, match=r"method tempering .* but sampler is marginal"):
        LearnedAttention(**SETTINGS, sampler="marginal", method="tempering").run_name(point)


def test_too_many_parameters_for_a_mixture_are_told(tmp_path):
    task = SingleLocation(examples=6, test_examples=5, tokens=3, token_width=150)
    run_study(Study(task, [10]), tmp_path / "study")
    study = StoredStudy(tmp_path / "study")
    settings = LearnedAttention(**SETTINGS)
    with pytest.raises(StudyError, match=r"300 parameters, 304 with .* take --method nuts"):
        chains_of(study, study.point(10.0), settings)
    chains = chains_of(study, study.point(10.0), LearnedAttention(**SETTINGS, method="nuts"))
    assert chains.attention.dimension == 300


def test_stages_that_disagree_are_told(sampled):
    stages = open_run(StoredStudy(sampled), RUN)["tempering"].to_dataset().load()
    good = stages.assign(
        agrees=stages["agrees"] | True,
        smallest_swap=stages["smallest_swap"] * 0 + 0.5,
        log_evidence=stages["log_evidence"] * 0 - 3.0,
    )
    assert warnings(good) == []
    (line,) = warnings(good.assign(agrees=good["agrees"] & (good["chain"] == 0)))
    assert "in 1 of 2 chains" in line
    (line,) = warnings(good.assign(smallest_swap=good["smallest_swap"] * 0.1))
    assert "0.05 of the sweeps" in line
    spread = good.assign(log_evidence=good["log_evidence"] + 10 * good["chain"])
    (line,) = warnings(spread)
    assert "spread by 7.07 nats" in line


def test_chains_that_attend_to_different_tokens_are_told():
    values = np.random.default_rng(0).normal(size=(4, 200, 2))
    heads = np.array(["1-1", "1-2"], "T")
    attended = xr.DataArray(values, {"head": heads}, ("chain", "draw", "head"))
    assert attention_warnings(attended) == []
    shift = xr.DataArray(np.outer(np.arange(4), [0, 1]), dims=("chain", "head"))
    (line,) = attention_warnings(attended + shift)
    assert "tokens that head 1-2 attends to" in line
    assert attention_warnings(attended.isel(chain=[0])) == []


def test_maxima_that_no_draw_resembles_are_told(sampled):
    maxima = open_run(StoredStudy(sampled), RUN)["maxima"].to_dataset().load().isel(maximum=[0, 0])
    values = {"log_evidence": [-20.0, -30.0], "is_seen": [True, False], "starts": [1, 1]}
    maxima = maxima.assign({name: ("maximum", value) for name, value in values.items()})
    assert missed_modes(maxima) == []  # e^−10 of the evidence
    likely = maxima.assign(log_evidence=("maximum", [-20.0, -21.0]))
    (line,) = missed_modes(likely)
    assert line.startswith("maximum 2, where 1 starts ended")
    assert missed_modes(likely.assign(is_seen=("maximum", [True, True]))) == []


def test_heads_are_ordered_by_their_scores():
    """Of every layer with a skip, several outputs included: scores fall along the order."""
    generator = np.random.default_rng(0)
    network = pk.Network((3, 2), 40, outputs=2, skips=(0.5, None))
    layers = [pk.KeyVectors(generator.standard_normal((count, 3))) for count in (3, 2)]
    inputs, labels = generator.standard_normal((5, 4, 3)), generator.standard_normal((5, 2))
    posterior = pk.AttentionPosterior(inputs, labels, layers, network, 0.3)
    root = generator.standard_normal((16, 16))
    u = root @ root.T
    orders = orders_of_heads(posterior, u)
    paths = order_of_paths(posterior, orders)
    assert sorted(paths) == list(range(16))
    scores = head_scores(network, u[np.ix_(paths, paths)])
    first, second = np.split(scores, [3])
    assert (np.diff(first) <= 0).all()
    assert (np.diff(second) <= 0).all()
    np.testing.assert_allclose(np.sort(scores), np.sort(head_scores(network, u)), rtol=1e-12)
    # the same by layers: heads of swapped layers have swapped rows
    xi = posterior.attend(layers)
    numbers = [(order + 1).tolist() for order in orders]
    kept = [layer.keep_heads(order) for layer, order in zip(layers, numbers)]
    swapped = posterior.attend(kept)
    np.testing.assert_allclose(swapped, xi[:, paths[::2] // 2], rtol=1e-12)


def test_the_views_compare_learned_random_and_given_heads(sampled):
    study = open_study(sampled)
    views = list(LearnedAttention().views(StoredStudy(sampled)))
    worth, heads, *rest = views
    assert (worth.name, heads.name) == ("worth", "heads")
    (row,) = worth.frame.to_dict("records")
    given = study["accuracy"].sel(width=10).squeeze().item()
    assert row["accuracy_given"] == pytest.approx(given)
    random = open_run(StoredStudy(sampled), RUN)["random_heads"]["accuracy"]
    assert row["accuracy_random"] == pytest.approx(float(random.mean()))
    assert 0 <= row["accuracy"] <= 1
    assert list(heads.frame["head"]) == ["1-1", "1-2"]
    assert any(str(line).startswith("Draws: ") for line in rest)
    tables = [view.name for view in rest if isinstance(view, Table)]
    assert tables == ["modes", "maxima", "stages"]
    charts = [view for view in rest if isinstance(view, Chart)]
    assert len(charts) == 2
    assert all(chart.altair() is not None for chart in charts)


@pytest.mark.parametrize(
    ("options", "dimension"),
    [
        ({"form": "queries-keys", "rank": 2}, 2 * 2 * 2 * 4),
        ({"form": "products"}, 2 * 4 * 4),
        ({"form": "key-vectors", "sampler": "marginal"}, 2 * 4),
    ],
    ids=str,
)
def test_forms_and_samplers(sampled, options, dimension):
    study = StoredStudy(sampled)
    settings = LearnedAttention(**SETTINGS, **options)
    chains = attention_chains(study, study.point(10.0), settings)
    assert chains.attention.dimension == dimension
    beside = 0 if "sampler" in options else 4  # three entries of U's root and one of the readout's
    assert chains.model.dimension == dimension + beside


def test_the_factor_of_inputs_is_one_of_weights(tmp_path):
    """Attention depends on the tokens as they are; ξ is multiplied."""
    scaled = StoredStudy(make_study(tmp_path / "scaled", input_scale=3.0))
    chains = attention_chains(scaled, scaled.point(10.0), LearnedAttention(**SETTINGS))
    posterior = chains.attention
    assert posterior.network.variances[0] == pytest.approx(9.0)
    given = chains.point.data.realisation.layers
    xi = posterior.attend(given)
    np.testing.assert_allclose(3 * xi, chains.point.data.xi, rtol=1e-12)


def test_other_settings_are_refused(sampled):
    with pytest.raises(StudyError, match="variance: they have"):
        run_result(LearnedAttention(**SETTINGS, draws=20, variance=2.0), sampled)


def test_studies_without_tokens_are_refused(tmp_path):
    study = StoredStudy(make_study(tmp_path / "relu", token_kernel="relu"))
    with pytest.raises(StudyError, match="kernel of tokens"):
        attention_chains(study, study.point(10.0), LearnedAttention(**SETTINGS))


def test_the_command_prints_the_tables(sampled, capsys, are_documented):
    options = ("--width", "10", "--chains", "2", "--warm-up", "30", "--thin", "5", "--draws", "20")
    with pytest.raises(SystemExit) as exit_:
        main(["attend", str(sampled), *options, "--random-heads", "2", "--starts", "1", "--json"])
    out, err = capsys.readouterr()
    assert exit_.value.code == 0, err
    assert are_documented(json.loads(out)["tables"])


def test_masses_of_several_points_have_a_table_a_chart_and_crossings(sampled, tmp_path):
    path = tmp_path / "study"
    shutil.copytree(sampled, path)
    study = StoredStudy(path)
    assert list(mass_views(study, "attention")) == []  # a single point
    _put_run(path, 10, {"content + position 1": [0.9, 0.7], "position 1 + content (2)": [0, 0.1]})
    _put_run(path, 40, {"content + position 1": [0.0, 0.0], "spread + spread": [0.7, 0.9]})
    _put_run(path, 160, {"content + position 1": [0.2, 0.0], "spread + spread": [0.8, 1.0]})
    table, crossing, chart = LearnedAttention().joint_views(StoredStudy(path))
    assert chart.altair() is not None
    masses = table.frame.set_index(["width", "kind"])["mass"]
    assert masses[10, "content + position 1"] == pytest.approx(0.85)  # heads may be exchanged
    assert masses[10, "spread + spread"] == 0
    assert masses[40, "spread + spread"] == pytest.approx(0.8)
    errors = table.frame.set_index(["width", "kind"])["mass_error"]
    assert errors[40, "spread + spread"] == pytest.approx(0.1)
    assert "spread + spread are equally likely where the width N is between 10 and 40" in crossing
    assert chart.altair() is not None


def _put_run(path, width, masses, seed=0):
    """Store modes with these masses in two chains, beside what else a run at N = 10 has."""
    tree = open_run(StoredStudy(path), RUN).load()
    names, chains = list(masses), np.array(list(masses.values())).T
    modes = xr.Dataset(
        {"name": ("mode", np.array(names, "T")), "mass_of_chain": (("chain", "mode"), chains)},
        {"head": tree["modes"]["head"], "mode": range(1, len(names) + 1)},
    )
    settings = json.loads(tree.attrs["settings"]) | {"width": width, "seed": seed}
    # of all groups only these are read for masses
    names = (".", "posterior")
    groups = {name: tree[name].to_dataset() for name in names} | {"modes": modes}
    groups["."] = groups["."].assign_attrs(settings=json.dumps(settings))
    part = f"{RUN.rpartition('/')[0]}/seed-{seed}_T-0.1_N-{width}"
    StoredStudy(path).write(part, xr.DataTree.from_dict(groups))
    with lock_folder(path):
        publish_parts(path, "attention")


def test_seeds_have_a_table_and_no_axis(sampled, tmp_path):
    path = tmp_path / "study"
    shutil.copytree(sampled, path)
    _put_run(path, 10, {"content + content": [0.9, 0.7], "spread + spread": [0.1, 0.3]}, seed=1)
    study = StoredStudy(path)
    (table,) = LearnedAttention().joint_views(study)
    assert set(table.frame["seed"]) == {0, 1}


def test_masses_are_those_of_the_seed_and_temperature_to_show(tmp_path, sampled):
    path = tmp_path / "study"
    shutil.copytree(sampled, path)
    masses = {"content + content": [0.9, 0.7], "spread + spread": [0.1, 0.3]}
    _put_run(path, 40, masses)
    _put_run(path, 160, {"position 3 + position 3": [1.0, 1.0]}, seed=2)
    study = StoredStudy(path)
    # widths that were just computed stand beside all others
    for settings in ({}, {"temperature": 0.1}, {"widths": (10,), "seed": 0}):
        table, *_ = LearnedAttention(**settings).joint_views(study)
        assert set(table.frame["width"]) == {10, 40, 160}
    table, *_ = LearnedAttention(seed=0, temperature=0.1).joint_views(study)
    assert set(table.frame["width"]) == {10, 40}
    assert "position 3 + position 3" not in set(table.frame["kind"])
    assert list(LearnedAttention(seed=1).joint_views(study)) == []
    assert list(LearnedAttention(temperature=0.2).joint_views(study)) == []


def test_a_crossing_is_where_logs_of_ratios_vanish():
    def rows(*masses):
        return pd.DataFrame(
            [
                {"agreement": x, "kind": kind, "chains": np.array(chains)}
                for x, chains in masses
                for kind, chains in (("one", chains), ("other", 1 - np.array(chains)))
            ]
        )

    (line,) = crossings(rows((0.2, [0.1, 0.1]), (0.3, [0.5, 0.9])), "agreement", [])
    # log-odds −2.197 and +0.847
    assert "of one and of other" in line
    assert "the agreement is 0.272 ± " in line
    assert "between 0.2 and 0.3" in line
    assert list(crossings(rows((0.2, [0.1, 0.1]), (0.3, [0.2, 0.3])), "agreement", [])) == []
    # a value at which both are equal is told once
    equal = rows((0.2, [0.3, 0.3]), (0.3, [1.0, 0.0]), (0.4, [0.7, 0.7]))
    (line,) = crossings(equal, "agreement", [])
    assert "the agreement is 0.3 ± " in line
    (line,) = crossings(rows((0.2, [0.4]), (0.3, [0.6])), "agreement", [])
    assert "is 0.25, interpolated" in line  # without an error: a single chain
    # along the logarithm of a width: halfway between 10 and 1000
    far = rows((10, [0.4]), (1000, [0.6])).rename(columns={"agreement": "width"})
    (line,) = crossings(far, "width", [])
    assert "width N is 100, interpolated" in line
