"""What those who look on see of long work, and the threads it takes."""

import pytest
import threadpoolctl
from rich.progress import Progress as Bar

from pathkernel_core.progress import Progress
from pathkernel_datasets import watching
from pathkernel_datasets.watching import Lines, Notebook, ProgressBar, showing_progress, supervised


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


class Page:
    """What a notebook shows, as IPython.display.display does it."""

    def __init__(self):
        self.shown = []

    def __call__(self, page, *, raw, display_id):
        assert raw
        assert display_id
        self.shown.append(page["text/html"])
        return self

    def update(self, page, *, raw):
        assert raw
        self.shown.append(page["text/html"])


def test_a_notebook_shows_a_bar_that_moves(monkeypatch):
    page, now = Page(), [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    report = Notebook(page)
    report(Progress(0, None, "data <b>"))
    report(Progress(1, 3, "hidden by the next"))
    now[0] = 1.0
    report(Progress(2, 3, "N = 10", {"loss": 0.25}))
    report(Progress(3, 3, "complete"))  # at once, or the bar would stay where it was
    bar = '<progress value="{0}" max="3"></progress> {0}/3 '
    assert page.shown == [
        "<progress></progress> data &lt;b&gt;",
        bar.format(2) + "N = 10, loss 0.25",
        bar.format(3) + "complete",
    ]


def test_elsewhere_a_line_a_minute(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    with showing_progress() as report:
        assert isinstance(report, Lines)
        for second in range(0, 150, 10):
            now[0] = second
            report(Progress(second, 200, "N = 10", {"gradient": 0.5}))
    assert report.called
    assert capsys.readouterr().err.splitlines() == [
        "200 steps, about 3 minutes to go",
        "1 min: 60 of 200, N = 10, gradient 0.5",
        "2 min: 120 of 200, N = 10, gradient 0.5",
    ]


def test_each_part_of_long_work_says_what_it_takes(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    with showing_progress() as report:
        for done, total, seconds in (
            *((0, None, 50.0), (0, 10, 0.0), (1, 10, 4.0), (2, 10, 4.0)),  # short: 32 s to go
            *((0, 20, 0.0), (1, 20, 9000.0), (2, 20, 1800.0), (3, 25, 1800.0)),  # data, then steps
        ):
            now[0] += seconds
            report(Progress(done, total, "drawing"))
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "to go" in line] == ["20 steps, about 9.0 hours to go"]


def test_what_is_expected_is_said_before_any_step_is_done(capsys):
    with showing_progress() as report:
        report(Progress(0, 20, "short", expected=100.0))
        report(Progress(0, 20, "long", expected=9000.0))
    assert capsys.readouterr().err == "20 steps, about 2.5 hours to go\n"


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
