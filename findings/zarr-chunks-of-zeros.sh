#!/usr/bin/env bash
# xarray 2026.9.0 and Zarr 3.1.6 write no file for a chunk that contains the fill value alone, as of
# labels that are all of class 0, and read a chunk without a file as that value. So a complete array
# looks like one that has lost a chunk in a copy: neither reads with an error, or a warning. Count the
# chunks that are there (zarr's nchunks_initialized), or write all of them (write_empty_chunks).
#
# Seen with xarray 2026.9.0, Zarr 3.1.6, NumPy 2.4.6, Python 3.11: six labels in two chunks. Fails if
# both chunks have a file, or the lost one is noticed.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet xarray==2026.9.0 zarr==3.1.6 numpy==2.4.6
cd "$folder"
cat >labels.py <<'PYTHON'
import warnings
from pathlib import Path

import numpy as np
import xarray as xr

warnings.simplefilter("error")


def write(labels, folder):
    dataset = xr.Dataset({"label": ("example", labels)})
    encoding = {"label": {"chunks": (3,)}}
    dataset.to_zarr(folder, encoding=encoding, consolidated=False)
    files = sorted(file.name for file in Path(folder, "label", "c").iterdir())
    print(f"{folder}: labels {labels.tolist()}, files of chunks {files}")
    return files


def read(folder):
    return xr.open_zarr(folder, consolidated=False, chunks=None)["label"].values.tolist()


assert write(np.array([0, 0, 0, 1, 1, 1]), "sorted") == ["1"]
assert write(np.array([2, 2, 2, 1, 1, 1]), "lost") == ["0", "1"]
Path("lost", "label", "c", "0").unlink()
print(f"expected an error of a lost chunk, read {read('lost')}")
assert read("lost") == read("sorted") == [0, 0, 0, 1, 1, 1]
PYTHON
environment/bin/python labels.py
