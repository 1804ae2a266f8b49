#!/usr/bin/env bash
# SciPy 1.17.1's Wishart drops axes of its draws: those of length one. rvs(size=n) has the shape
# (n, p, p), but size=1 gives (p, p), and matrices of size 1 × 1 give (n,). A loop over draws then
# runs over the rows of a matrix, and code that was right for p = 2 fails for p = 1. Ask for n draws
# and reshape them to (n, p, p).
#
# Seen with SciPy 1.17.1, NumPy 2.4.6, Python 3.11. Fails if all draws have the shape (n, p, p).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet scipy==1.17.1 numpy==2.4.6
cd "$folder"
cat >draw.py <<'PYTHON'
import numpy as np
from scipy.stats import wishart

shapes = {}
for size, order in ((1, 2), (3, 2), (3, 1)):
    draws = wishart(df=5, scale=np.eye(order)).rvs(size=size, random_state=0)
    shapes[size, order] = np.shape(draws)
    print(f"expected ({size}, {order}, {order}), seen {np.shape(draws)}")
assert shapes == {(1, 2): (2, 2), (3, 2): (3, 2, 2), (3, 1): (3,)}
PYTHON
environment/bin/python draw.py
