#!/usr/bin/env bash
# An attribute that is a list of one number is a number after a journey through NetCDF by xarray
# 2026.9.0 and SciPy: [4] comes back as 4, while [4, 2] comes back as an array. Code that reads "the
# heads of each layer" from such a file fails for networks of one layer alone. Zarr keeps the list.
# Take numpy.atleast_1d of what is read, or do not store lists in attributes.
#
# Seen with xarray 2026.9.0, SciPy 1.17.1, Zarr 3.1.6, NumPy 2.4.6, Python 3.11. Fails if NetCDF gives
# a list or an array back, or Zarr does not.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet \
  xarray==2026.9.0 scipy==1.17.1 zarr==3.1.6 numpy==2.4.6
cd "$folder"
cat >store.py <<'PYTHON'
import numpy as np
import xarray as xr

attributes = {"one layer": [4], "two layers": [4, 2]}
dataset = xr.Dataset({"u": ("x", np.arange(3.0))}, attrs=attributes)
dataset.to_netcdf("a.nc", engine="scipy")
dataset.to_zarr("a.zarr", consolidated=False)
stored = {
    "NetCDF": xr.open_dataset("a.nc", engine="scipy").attrs,
    "Zarr": xr.open_zarr("a.zarr", consolidated=False).attrs,
}
for kind, read in stored.items():
    for name, value in attributes.items():
        print(f"{kind}, {name}: wrote {value}, read {read[name]!r}")
dimensions = {kind: [np.ndim(read[name]) for name in attributes] for kind, read in stored.items()}
assert dimensions == {"NetCDF": [0, 1], "Zarr": [1, 1]}
PYTHON
environment/bin/python store.py
