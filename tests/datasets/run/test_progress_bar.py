"""What those who look on see of long work, and the threads it takes."""

import pytest
import threadpoolctl
from rich.progress import Progress as Bar

from pathkernel_core.system.progress import Progress
from pathkernel_datasets.run.progress_bar import ProgressBar, showing_progress, supervised


def threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}


def test_one_thread_unless_told_otherwise():
    with threadpoolctl.threadpool_limits(2):
        before = threads()
        if before != {2}:
            pytest.skip("the linear algebra here takes one thread only")
        for limit, found in ((1, {1}), (None, {2})):
            with supervised(print, limit) as report:
                assert report is print
                assert threads() == found
        assert threads() == before


def test_a_terminal_shows_a_bar(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes any stream for a terminal
    with showing_progress() as report:
        assert isinstance(report, ProgressBar)
        assert not report.called
        report(Progress(1, 2, "computing"))
        assert report.called


def test_elsewhere_nothing_is_shown(capsys):
    with showing_progress() as report:
        report(Progress(1, 200, "N = 10", {"gradient": 0.5}))
    assert report.called
    assert capsys.readouterr().err == ""


def test_the_bar_of_a_terminal():
    with Bar(disable=True) as bar:
        report = ProgressBar(bar)
        (line,) = bar.tasks
        assert (line.description, line.total) == ("starting", None)
        started = line.start_time
        report(Progress(4, 10, "reading"))
        assert (line.completed, line.total) == (4, 10), "of work that goes on"
        assert line.start_time > started, "reading does not count for the time left"
        started = line.start_time
        report(Progress(5, 10, "training", {"loss": 0.5, "accuracy": float("nan")}))
        assert (line.completed, line.total) == (5, 10)
        assert line.start_time == started
        assert line.description == "training, loss 0.5"
