"""Help of every command: its words, and values as they are typed."""

import re

import click
import pytest

from pathkernel.main import _with_commands
from pathkernel_core.contracts.hooks import load_plugins

VERBS = {
    *(
        "Classify",
        "Compare",
        "Compute",
        "Copy",
        "Draw",
        "Find",
        "Learn",
        "List",
        "Map",
        "Name",
        "Print",
        "Sample",
    ),
    *("Show", "Take", "Train", "Write"),
}
HYPHENATED = ("strong-noise-uniform", "one-shot-images", "trained:2-4-512-128", "leave-one-out")


def commands(command, context, names=()):
    """Every command below one, with its context and name."""
    yield " ".join(names), command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            inner = below.context_class(below, info_name=name, parent=context)
            yield from commands(below, inner, (*names, name))


def every_command():
    plugins = load_plugins()
    group = _with_commands(plugins)
    context = group.context_class(group, info_name="pathkernel", obj=plugins, terminal_width=80)
    return list(commands(group, context))


EVERY = every_command()
IDS = [name or "pathkernel" for name, _, _ in EVERY]


@pytest.mark.parametrize(("name", "command", "context"), EVERY, ids=IDS)
def test_the_first_line_begins_with_a_verb_and_is_not_cut(name, command, context):
    lines = [line.strip() for line in command.get_help(context).splitlines()]
    first = next(line for line in lines[1:] if line)
    assert first.split()[0] in VERBS
    if isinstance(command, click.Group):
        listed = command.get_help(context).partition("Commands:\n")[2]
        assert "..." not in listed
        summaries = re.findall(r"^  [\w-]+ {2,}(\w+)", listed, flags=re.MULTILINE)
        assert len(summaries) == len(command.list_commands(context))
        assert {*summaries} <= VERBS


@pytest.mark.parametrize(("name", "command", "context"), EVERY, ids=IDS)
def test_values_stand_as_they_are_typed(name, command, context):
    """None is broken at its hyphens, and no default or bound is written as Python does."""
    text = command.get_help(context)
    assert "\N{NON-BREAKING HYPHEN}" not in text
    for word in HYPHENATED:
        for end in range(1, len(word)):
            if word[end - 1] == "-":
                assert not re.search(rf"(?<!\S){re.escape(word[:end])}\n", text), word
    assert not re.search(r"default: -?\d+\.0\b", text)
    assert not re.search(r"<=|RANGE|None", text)
    assert max(map(len, text.splitlines())) <= 80
