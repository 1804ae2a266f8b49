"""The first second, and streams that are closed, full, or lack the characters."""

import codecs
import subprocess
import sys

import pytest

from pathkernel import start

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
from pathkernel.output import OutputError, print_views, say
import pandas as pd
from pathkernel_views.table import Table
table = Table("t", "title", pd.DataFrame({"a": ["b"]}), {"a": "{a}"})
try:
    for _ in range(2):
        print_views([table, "line" * 10_000])
    say("last")
    sys.stdout.flush()
except OutputError as error:
    say(f"Error: {error}", err=True)
say("done", err=True)
"""


def run(program, **streams):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, **streams)


def test_ctrl_c_while_the_program_is_imported():
    done = run(INTERRUPTED_IMPORT, stdout=subprocess.PIPE)
    assert done.stderr == "\nInterrupted.\n"
    assert done.stdout == ""
    assert done.returncode == 130


def test_nobody_reads_what_is_printed():
    """As with ``| head -1``: what is to be computed and written still is."""
    with subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE) as reader:
        reader.wait()
        done = run(PRINTING, stdout=reader.stdin)
    assert done.stderr == "done\n"
    assert done.returncode == 0


def test_full_disk_behind_stdout():
    with open("/dev/full", "w") as full:
        done = run(PRINTING, stdout=full)
    expected = "Error: stdout cannot be written: No space left on device. What is computed is kept"
    assert done.stderr == f"{expected}\ndone\n"
    assert done.returncode == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(closed):
    program = "import sys; from pathkernel.start import main; sys.argv[1:] = ['--version']; main()"
    command = f'"{sys.executable}" -c "{program}" {closed}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", "R2: 1 - sigma, Omega x ... sqrt(N) e \\u65e5"),
        ("latin-1", "R²: 1 - sigma, Omega x ... sqrt(N) é \\u65e5"),
        ("cp1252", "R²: 1 - sigma, Omega x … sqrt(N) é \\u65e5"),
        ("utf-8", "R²: 1 − σ, Ω x … √(N) é 日"),
    ],
)
def test_characters_that_an_encoding_lacks(encoding, shown):
    codecs.register_error("pathkernel", start._in_plain_letters)
    text = "R²: 1 − σ, Ω x … √(N) é 日".encode(encoding, "pathkernel")
    assert text.decode(encoding) == shown
