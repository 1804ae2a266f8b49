#!/usr/bin/env bash
# arviz-stats 0.8.0 gives draws that never moved the largest effective sample size: of 4 chains of 500
# equal draws it is 2000, bulk and tail, as of 2000 independent draws. R-hat is NaN, and a comparison
# such as r_hat > 1.01 is false for it. So a sampler that is stuck at one value passes both usual
# checks. Test that draws vary before either number is used.
#
# Seen with arviz-stats 0.8.0, NumPy 2.4.6, Python 3.11. Fails if the effective sample size of equal
# draws is another one, or R-hat is a number.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet arviz-stats==0.8.0 numpy==2.4.6
cd "$folder"
cat >diagnose.py <<'PYTHON'
import warnings

import numpy as np
from arviz_stats.base import array_stats

warnings.simplefilter("ignore")  # of a division by zero
axes = {"chain_axis": 0, "draw_axis": 1}
moving, stuck = np.random.default_rng(0).normal(size=(4, 500)), np.zeros((4, 500))
for name, draws in (("independent", moving), ("stuck", stuck)):
    bulk = float(array_stats.ess(draws, method="bulk", **axes))
    tail = float(array_stats.ess(draws, method="tail", prob=(0.05, 0.95), **axes))
    r_hat = float(array_stats.rhat(draws, **axes))
    print(f"{name}: bulk ESS {bulk:.0f}, tail ESS {tail:.0f}, R-hat {r_hat:.3f}")
print("expected of stuck draws: an effective sample size of at most 4, or none")
assert bulk == tail == stuck.size
assert np.isnan(r_hat) and not r_hat > 1.01
PYTHON
environment/bin/python diagnose.py
