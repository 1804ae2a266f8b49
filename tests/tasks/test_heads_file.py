"""Files of heads that a user writes: names that are slips, and what is never written."""

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_tasks.heads_file import read_heads, save_heads

WIDTH = 4


@pytest.fixture
def arrays():
    queries, keys = np.random.default_rng(0).normal(size=(2, 2, 3, WIDTH))
    return {"queries.1": queries, "keys.1": keys}


@pytest.mark.parametrize(
    "name", ["scales", "Scale", "label", "labels.1", "approximations", "Keys.2", "queries_2"]
)
def test_slips(tmp_path, arrays, name):
    np.savez(tmp_path / "heads.npz", **arrays, **{name: np.ones(2)})
    with pytest.raises(ValueError, match=rf"holds '{name}'; .* and the others scale, labels"):
        read_heads(tmp_path / "heads.npz")


def test_layers_far_off(tmp_path, arrays):
    """The message lists some of what is missing, and is found at once."""
    for number, message in (
        (9999, r"lacks 'queries\.2', .*'keys\.6', …;"),
        (10**9, "must be named"),
    ):
        np.savez(tmp_path / "heads.npz", **arrays, **{f"keys.{number}": np.ones(2)})
        with pytest.raises(ValueError, match=message) as caught:
            read_heads(tmp_path / "heads.npz")
        assert len(str(caught.value)) < 500


def test_what_is_not_read_is_said(tmp_path, arrays):
    np.savez(tmp_path / "heads.npz", **arrays)
    assert read_heads(tmp_path / "heads.npz").ignored == ""
    np.savez(tmp_path / "heads.npz", **arrays, **{"values.1": np.ones(2), "readout": np.ones(2)})
    expected = "heads.npz: readout, values.1 not read (read: keys.1, queries.1)"
    assert read_heads(tmp_path / "heads.npz").ignored == expected


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_what_would_be_refused_is_not_written(tmp_path, arrays, suffix):
    path = tmp_path / f"heads.{suffix}"
    layer = pk.QueryKey(arrays["queries.1"], arrays["keys.1"])
    with pytest.raises(ValueError, match="label_vectors holds NaN or infinity"):
        save_heads(path, [layer], label_vectors=np.full((3, WIDTH), np.nan))
    assert not path.exists()


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_scales_that_are_not_positive(tmp_path, arrays, scale):
    np.savez(tmp_path / "heads.npz", **arrays, scale=scale)
    with pytest.raises(ValueError, match=r"heads\.npz': 'scale' must be positive"):
        read_heads(tmp_path / "heads.npz")
