#!/usr/bin/env bash
# safetensors 0.8.0 writes the entries of a file's metadata in another order in every process, so
# that files of equal tensors and equal metadata have different digests. Tensors are in a fixed
# order. Whoever names or compares files by a digest of all bytes has to expect it; a digest of the
# tensors' bytes is stable.
#
# Seen with safetensors 0.8.0, NumPy 2.4.6, Python 3.11: sixteen processes give several digests of
# the file, and one of the tensors. Fails if all files are equal, or tensors differ.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet safetensors==0.8.0 numpy==2.4.6
cd "$folder"
cat >save.py <<'PYTHON'
import hashlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

path = sys.argv[1]
metadata = {"format": "a", "about": "b", "source": "c", "version": "d"}
save_file({"weights": np.arange(6.0), "bias": np.zeros(2)}, path, metadata)
whole = hashlib.sha256(open(path, "rb").read()).hexdigest()[:12]
tensors = b"".join(array.tobytes() for _, array in sorted(load_file(path).items()))
print(whole, hashlib.sha256(tensors).hexdigest()[:12])
PYTHON
for number in $(seq 16); do
  environment/bin/python save.py "$number.safetensors"
done >digests
files="$(cut -d' ' -f1 digests | sort -u | wc -l)"
tensors="$(cut -d' ' -f2 digests | sort -u | wc -l)"
echo "safetensors 0.8.0: $files digests of 16 files, $tensors of their tensors"
[[ "$files" -gt 1 && "$tensors" == 1 ]]
