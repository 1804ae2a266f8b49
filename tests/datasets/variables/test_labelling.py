"""Text of any length, and of fixed length."""

import numpy as np
import pytest
import xarray as xr

from pathkernel_core.system import memory
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.variables.labelling import drawable, storable


def test_one_long_label_among_many_is_no_text_of_fixed_length(monkeypatch):
    monkeypatch.setattr(memory, "_SMALL_CLAIM", 100)
    labels = np.array(["a" * 5000, *"bcdefgh" * 300], dtype=np.dtypes.StringDType())
    dataset = xr.Dataset(coords={"path": labels, "number": ("path", np.arange(len(labels)))})
    with pytest.raises(StudyError, match="the labels path of the dataset would take"):
        drawable(dataset)
    assert storable(dataset)["path"].dtype == object
    few = drawable(dataset.isel(path=slice(1, None)))
    assert few["path"].dtype.kind == "U"
    assert few["number"].dtype == dataset["number"].dtype
