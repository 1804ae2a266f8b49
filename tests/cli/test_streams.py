"""The first second, and streams that are closed, full, or lack the characters."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.version

INTERRUPTED_IMPORT = """
import os, signal, sys
class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == "pathkernel.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
from pathkernel.start import main
main()
"""

PRINTING = """
import sys
import click
from pathkernel import main, start
from pathkernel.commands.output import print_views
import pandas as pd
from pathkernel_views.table import Table
table = Table("t", "title", pd.DataFrame({"a": ["σ²"]}), {"a": "{a}"})

@click.command()
def printing():
    print_views([table, "line" * 10_000, table])

main.pathkernel.add_command(printing)
main._with_commands = lambda plugins: main.pathkernel
sys.argv[1:] = ["printing"]
start.main()
"""


def run(program, **streams):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, **streams)


def test_ctrl_c_while_the_program_is_imported():
    done = run(INTERRUPTED_IMPORT, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_nobody_reads_what_is_printed():
    """As with ``| head -1``."""
    with subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE) as reader:
        reader.wait()
        done = run(PRINTING, stdout=reader.stdin)
    assert done.stderr == ""
    assert done.returncode == 1


def test_full_disk_behind_stdout():
    with open("/dev/full", "w") as full:
        done = run(PRINTING, stdout=full)
    assert done.stderr.startswith("Error: no space left on the disk")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(closed):
    program = "import sys; from pathkernel.start import main; sys.argv[1:] = ['--version']; main()"
    command = f'"{sys.executable}" -c "{program}" {closed}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""


def test_characters_that_an_encoding_lacks(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = run(PRINTING, stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert "??" in done.stdout


def test_errors_do_not_go_to_stdout_where_stderr_is_closed(tmp_path):
    program = (
        "from pathkernel.start import main; import sys; sys.argv[1:] = ['show', 'none']; main()"
    )
    command = f'"{sys.executable}" -c "{program}" 2>&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
