"""The guide's commands and examples do what it says."""

import re
from pathlib import Path

import numpy as np
import xarray as xr

import pathkernel_core as pk
from pathkernel_tasks.heads_file import read_heads

GUIDE = (Path(__file__).parents[2] / "docs" / "bring-your-own.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)


def test_five_minutes(invoke, monkeypatch, tmp_path):
    files, scores, study, arrays = blocks("python")[:4]
    names = {}
    exec(files, names)
    (command,) = blocks("sh")[0].splitlines()
    program, *arguments = command.split()
    assert program == "pathkernel"
    status, out, err = invoke(*arguments, "--no-figures")
    assert status == 0, err
    assert "classes 0 and 1 became" in out
    exec(scores, {})
    dataset = xr.open_zarr("custom/study.zarr", chunks=None)
    found = dataset.head_score.sel(width=10, temperature=0.1, seed=0).values
    assert found.argmax() == 0, "head 1 attends to the half that counts"
    heads = read_heads("mine.safetensors", 16)
    with np.load("mine.npz") as data:
        xi = pk.attentioned_inputs(data["inputs"], heads.layers, "mean")
        problem = pk.Problem(xi, 2.0 * data["labels"] - 1)
    solution = pk.minimise_action(problem, pk.Network((4,), 10), 0.1)
    point = dataset.sel(width=10, temperature=0.1, seed=0)
    assert np.allclose(point.order_parameter, solution.order_parameter, rtol=1e-5, atol=1e-7)
    assert np.allclose(found, pk.head_scores(solution.network, solution.order_parameter))
    exec(study, names)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    exec(arrays, names)
    assert names["task"].realise(0).train.inputs.shape == (225, 8, 16)
    assert xr.open_zarr("mine/study.zarr", chunks=None).accuracy.equals(dataset.accuracy)

    (command,) = (text for text in blocks("sh") if "--skips" in text)
    arguments = command.replace("\\\n", " ").split()[1:]
    assert invoke(*arguments, "--no-figures")[0] == 0
    (skips,) = (text for text in blocks("python") if "skips=skips" in text)
    exec(skips, names)
    at = xr.open_zarr("skips/study.zarr", chunks=None).sel(width=10, temperature=1, seed=0)
    np.testing.assert_allclose(at.skip_score, names["solution"].skip_scores, rtol=1e-5)
    np.testing.assert_allclose(at.head_score, names["solution"].head_scores, rtol=1e-5)


def test_run_custom_says_what_it_lacks(invoke):
    for arguments, message in (
        ([], "inputs must name a data file"),
        (["--inputs", "none.npz"], "there is no"),
    ):
        status, _, err = invoke("run", "custom", *arguments)
        assert status == 1
        assert message in err
