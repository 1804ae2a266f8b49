#!/usr/bin/env bash
# pandas 3.1.1 leaves a missing value missing where a column becomes text: astype(str) gives text,
# and a floating-point NaN in between. Until pandas 2 it gave the text "nan". Rows that are joined to
# one text, as a key of several columns, then raise a TypeError, and only where a value is missing:
# tests without one see nothing. Use map(str), which makes text of every value.
#
# Seen with pandas 3.1.1, NumPy 2.4.6, Python 3.11. Fails if astype(str) gives text alone, or map(str)
# does not.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet pandas==3.1.1 numpy==2.4.6
cd "$folder"
cat >convert.py <<'PYTHON'
import numpy as np
import pandas as pd

widths = pd.Series([10.0, np.nan])
kinds = {"astype(str)": widths.astype(str), "map(str)": widths.map(str)}
for name, column in kinds.items():
    kinds[name] = [type(value).__name__ for value in column]
    print(f"{name}: expected ['str', 'str'], seen {kinds[name]}")
assert kinds == {"astype(str)": ["str", "float"], "map(str)": ["str", "str"]}
try:
    widths.to_frame().astype(str).agg(" ".join, axis=1)
except TypeError as error:
    print(f"TypeError: {error}")
else:
    raise SystemExit("rows are joined")
PYTHON
environment/bin/python convert.py
