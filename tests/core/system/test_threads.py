"""BLAS threads during minimisations, which belong to the whole process."""

import threading

import numpy as np
import pytest
import scipy.linalg
import threadpoolctl

import pathkernel_core as pk
from pathkernel_core.system.threads import LONG, blas_threads_for


def blas_threads():
    pools = threadpoolctl.threadpool_info()
    return {pool["num_threads"] for pool in pools if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def _two_threads():
    assert scipy.linalg.lapack  # which loads a BLAS of its own
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        if blas_threads() != {2}:
            pytest.skip("this BLAS has a fixed number of threads")
        yield


def test_a_small_minimisation_uses_one_thread_and_restores_their_number():
    xi = np.random.default_rng(0).normal(size=(20, 4, 5))
    problem, network = pk.Problem(xi, np.sign(xi[:, 0, 0])), pk.Network((2, 2), 10)
    during = []
    pk.minimise_action(problem, network, 0.1, report=lambda _: during.append(blas_threads()))
    assert during[0] == {1}
    assert blas_threads() == {2}


def test_an_error_restores_the_threads():
    with pytest.raises(KeyError), blas_threads_for(0.0):
        raise KeyError
    assert blas_threads() == {2}


def test_a_large_problem_keeps_the_threads():
    with blas_threads_for(LONG):
        assert blas_threads() == {2}


@pytest.mark.parametrize("last", ["this thread", "the other"])
def test_overlapping_calls_of_two_threads_restore_the_number(last):
    entered, left = threading.Event(), threading.Event()

    def overlap():
        with blas_threads_for(0.0):
            entered.set()
            assert left.wait(60)

    thread = threading.Thread(target=overlap)
    with blas_threads_for(0.0):
        thread.start()
        assert entered.wait(60)
        if last == "this thread":
            left.set()
            thread.join()
    left.set()
    thread.join()
    assert blas_threads() == {2}


def test_nested_calls_keep_one_thread():
    with blas_threads_for(0.0):
        with blas_threads_for(0.0):
            pass
        assert blas_threads() == {1}
    assert blas_threads() == {2}
