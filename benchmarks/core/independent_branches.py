"""How long do thousands of independent branches take?

``python -m benchmarks.core.independent_branches``

Each line is a problem of random inputs whose labels three branches tell: seconds of the kernels
(made once, where they are in memory), of an evaluation of energy and gradient, of its floor, and of
the minimisation. The floor is what BLAS and LAPACK take for the two products and the factorisation
in preallocated buffers: with packed kernels K and the gradient, by features K and L⁻¹Φ.
``--rows 100:10000:20:1`` is examples, branches, inputs and width; several are separated by spaces.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.linalg import blas, lapack

import pathkernel_core as pk
from benchmarks.measuring import alternate, one_thread, timed

ROWS = "100:1000:20:1 100:10000:20:1 100:10000:4:1 300:10000:4:1 1000:10000:2:1"
TEMPERATURE = 0.1


def problem(examples: int, branches: int, inputs: int) -> pk.Problem:
    rng = np.random.default_rng(0)
    xi = rng.normal(size=(examples, branches, inputs))
    labels = np.einsum("pli,li->p", xi[:, :3], rng.normal(size=(3, inputs)))
    return pk.Problem(xi, labels / labels.std(), space="examples")


def floor(form):
    """The calls that no evaluation can do without, as one function."""
    examples = form.labels.shape[0]
    noisy = np.asfortranarray(np.eye(examples) + 0.1)
    if form.in_memory:
        kernels, u = form.kernels.T, np.ones(form.kernels.shape[0])
        weights = np.ones(kernels.shape[0])

        def calls():
            blas.dgemv(1.0, kernels, u)
            lapack.dpotri(lapack.dpotrf(noisy)[0])
            blas.dgemv(1.0, kernels, weights, trans=1)
    else:
        features = form.features.reshape(examples, -1)
        solved = features.copy().T

        def calls():
            blas.dsyrk(1.0, features.T, trans=1)
            root = lapack.dpotrf(noisy, lower=1)[0]
            blas.dtrsm(1.0, root, solved, side=1, lower=1, trans_a=1, overwrite_b=1)

    return calls


def measure(row: str) -> str:
    """One line of the table."""
    examples, branches, inputs, width = map(int, row.split(":"))
    given, root = problem(examples, branches, inputs), np.ones(branches)
    form, network = given.branch_form, pk.Network((branches,), width, shared=False)
    making, _ = timed(lambda: form.kernels if form.in_memory else None)
    sides = {
        "evaluation": lambda: form.energy_and_gradient(root, TEMPERATURE),
        "floor": floor(form),
    }
    seconds = alternate(sides, 3)
    minimum, solution = timed(lambda: pk.minimise_action(given, network, TEMPERATURE))
    return (
        f"{examples:8} {branches:8} {inputs:6} {width:5}  {form.name:8} {making:8.2f} "
        f"{seconds['evaluation']:11.3f} {seconds['floor']:6.3f} {minimum:8.2f} "
        f"{solution.evaluations:12}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", nargs="*", default=ROWS.split())
    rows = parser.parse_args().rows
    print(
        "examples branches inputs width  form      kernels  evaluation  floor  minimum  evaluations"
    )
    with one_thread():
        for row in rows:
            print(measure(row), flush=True)


if __name__ == "__main__":
    main()
