#!/usr/bin/env bash
# Where Dask is installed, xarray 2026.9.0 imports dask.array, 59 modules of Dask and what they need,
# when the first variable is made of a NumPy array, although nothing is chunked: a check for arrays
# of other libraries imports the library to have its type. One would expect that it looks only at
# libraries that are imported already, since an array of another cannot be there.
#
# Seen with xarray 2026.9.0, Dask 2026.8.0, NumPy 2.4.6, Python 3.11. Fails if making a variable no
# longer imports dask.array, or importing xarray already does.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet xarray==2026.9.0 dask==2026.8.0 numpy==2.4.6
cd "$folder"
cat >variable.py <<'PYTHON'
import sys
from importlib.metadata import version

import numpy as np
import xarray as xr

print(", ".join(f"{name} {version(name)}" for name in ("xarray", "dask", "numpy")))


def of_dask():
    return sum(name.partition(".")[0] == "dask" for name in sys.modules)


before, was_there = of_dask(), "dask.array" in sys.modules
variable = xr.Variable("x", np.arange(3.0))
after, is_there = of_dask(), "dask.array" in sys.modules
print(f"modules of dask after `import xarray`: {before}, after xr.Variable of an array: {after}")
print(f"expected: {before} and {before}")
assert variable.chunks is None
assert not was_there
assert is_there
PYTHON
environment/bin/python variable.py
