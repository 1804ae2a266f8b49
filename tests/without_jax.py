"""The command line in a process that cannot import JAX."""

import os
import subprocess
import sys

WITHOUT_JAX = """
import sys

class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("jax", "optax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from pathkernel.main import main
main(sys.argv[1:])
"""


def without_jax(*arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX, *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
