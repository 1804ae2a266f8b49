"""Text from elsewhere, made safe to show."""

import sys

from pathkernel_core.system.text import printable, shorten_message


def test_what_cannot_be_printed_is_written_out():
    assert printable("a\x1b[31m\nb\u202ec\udcff") == r"a\x1b[31m\nb\u202ec\udcff"
    assert printable("a\nb\xa0c\r", keep="\n\xa0") == "a\nb\xa0c\\r"
    assert printable("U ² − σ, 日本 $x$") == "U ² − σ, 日本 $x$"
    assert printable("".join(map(chr, range(sys.maxunicode + 1)))).isprintable()


def test_long_values_are_cut():
    message = "there is no dtype named 'float16'"
    assert shorten_message(message) == message
    cut = shorten_message(f"{'x' * 3000} is no dtype; choose float64")
    assert cut == f"{'x' * 60}…{'x' * 20} (3000 characters) is no dtype; choose float64"
    assert len(shorten_message("two words " * 1000)) < 2100
