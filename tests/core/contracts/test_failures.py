"""Errors of a plugin's own code: what it refuses passes through, its mistakes are named."""

import sys
from types import ModuleType

import pytest

from pathkernel_core.contracts.failures import named_failures
from pathkernel_core.system.errors import PathkernelError


class NamedError(PathkernelError):
    """As callers choose it."""


def module_of(name, code, **names):
    """A module of a name, of some code."""
    module = ModuleType(name)
    vars(module).update(names)
    exec(code, vars(module))
    return module


REFUSES = "def check():\n    raise ValueError('three is too many')\n"
CLASS = "class Task({base}):\n    def run(self):\n        {run}\n"


def task_of(where, monkeypatch):
    """A class whose ``run`` raises a ValueError from a place."""
    helper = module_of("someone.helpers", REFUSES)
    other = module_of("another.helpers", REFUSES)
    base = module_of(
        "another.base", "class Base:\n    def check(self):\n        raise ValueError('base')\n"
    )
    runs = {
        "its own module": "raise ValueError('three is too many')",
        "another module of its package": "helper.check()",
        "the module of a base class": "self.check()",
        "another package": "other.check()",
        "a function in C": "int('three')",
    }
    names = {"helper": helper, "other": other, "Base": base.Base}
    code = CLASS.format(base="Base", run=runs[where])
    module = module_of("someone.tasks", code, **names)
    for part in (helper, other, base, module):
        monkeypatch.setitem(sys.modules, part.__name__, part)
    return module.Task


@pytest.mark.parametrize(
    ("where", "refuses"),
    [
        ("its own module", True),
        ("another module of its package", True),
        ("the module of a base class", True),
        ("another package", False),
        ("a function in C", False),
    ],
)
def test_what_a_class_refuses_passes_through_where_it_may(where, refuses, monkeypatch):
    task = task_of(where, monkeypatch)
    expected = ValueError if refuses else NamedError
    with (
        pytest.raises((ValueError, NamedError)) as error,
        named_failures("the task cannot run", task, NamedError, may_refuse=True),
    ):
        task().run()
    assert isinstance(error.value, expected)
    with (
        pytest.raises(
            NamedError, match=r"the task cannot run: ValueError: .*class someone\.tasks\.T"
        ),
        named_failures("the task cannot run", task, NamedError),
    ):
        task().run()
