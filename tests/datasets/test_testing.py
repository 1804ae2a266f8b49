"""Contracts of analyses and results: what their checks say to authors."""

from dataclasses import dataclass

import numpy as np
import pytest
import xarray as xr
from test_analyses import Trace

from pathkernel_core.contracts.analysis import Variable
from pathkernel_core.contracts.options import option
from pathkernel_core.contracts.result import Result
from pathkernel_core.system.progress import Progress
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.testing import SmallTask, check_analysis, check_result

TINY = Study(SmallTask(), (10,), (1.0,), (0,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Trace!"}, "must be lower-case words joined by hyphens"),
        ({"summary": ""}, "summary must say in one line what it is"),
        ({"summary": "Trace\nof"}, "summary must be a single line"),
        ({"variables": ()}, "variables must name what compute"),
        ({"variables": (Variable("trace", (), " "),)}, "variable trace needs a long_name"),
        ({"variables": (Variable("trace", ("a", "a"), "t"),)}, "trace names a dimension twice"),
        ({"compute": lambda *given: {"trace": np.nan}}, "trace is NaN everywhere"),
    ],
)
def test_what_is_said_of_an_analysis(changes, message):
    with pytest.raises(AssertionError, match=message):
        check_analysis(type("Changed", (Trace,), changes)(), TINY)


def test_an_analysis_that_changes_is_noticed():
    class Random(Trace):
        calls = iter(range(100))

        def compute(self, situation):
            return {"trace": float(next(self.calls))}

    check_analysis(Trace(), TINY)
    with pytest.raises(AssertionError, match="are not identical"):
        check_analysis(Random(), TINY)


def test_an_analysis_that_changes_what_it_is_given_is_noticed():
    class Evading(Trace):
        def compute(self, situation):
            owner = situation.solution.order_parameter.base
            owner.flags.writeable = True
            owner *= 1.5
            return super().compute(situation)

    class Sharing(Trace):
        """The problem of a solution is that of all, and its arrays can be written."""

        def compute(self, situation):
            array = situation.solution.problem.array
            array *= 1.5
            return super().compute(situation)

    for analysis in (Evading(), Sharing()):
        with pytest.raises(AssertionError, match=r"another .*compute.. must not change its arrays"):
            check_analysis(analysis, TINY)


@dataclass(frozen=True)
class Counted(Result):
    """A result that keeps its contract but for what is changed."""

    name = "counted"
    summary = "Number of variables"
    silent = False
    views_given = ("a sentence",)
    data = xr.Dataset({"number": ((), 3, {"long_name": "number of variables"})})

    many: int = option(3, "number of variables")

    def compute(self, study, report):
        if not study.holds(self.name):
            if not self.silent:
                report(Progress(0, 1, "counting"))
            yield "", self.data

    def views(self, study):
        return self.views_given


def test_a_result_that_keeps_its_contract():
    check_result(Counted(), TINY)


@dataclass(frozen=True)
class Unexplained(Counted):
    many: int = option(3, "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Counted"}, "must be lower-case words joined by hyphens"),
        ({"command": "count it"}, "command 'count it' must be lower-case words"),
        ({"views_given": (" ",)}, "a sentence is empty"),
        ({"views_given": (3,)}, "3 is no Table, Chart or text"),
        ({"data": xr.Dataset({"number": 3})}, "variable number needs a long_name"),
    ],
)
def test_what_is_said_of_a_result(changes, message):
    with pytest.raises(AssertionError, match=message):
        check_result(type("Changed", (Counted,), changes)(), TINY)


def test_an_option_needs_a_help_text():
    with pytest.raises(AssertionError, match="option many needs a help text"):
        check_result(Unexplained(), TINY)
