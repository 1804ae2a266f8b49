"""Text from elsewhere, made safe to show."""

import sys

from pathkernel_core.text import printable


def test_what_cannot_be_printed_is_written_out():
    assert printable("a\x1b[31m\nb\u202ec\udcff") == r"a\x1b[31m\nb\u202ec\udcff"
    assert printable("a\nb\xa0c\r", keep="\n\xa0") == "a\nb\xa0c\\r"
    assert printable("U ² − σ, 日本 $x$") == "U ² − σ, 日本 $x$"
    assert printable("".join(map(chr, range(sys.maxunicode + 1)))).isprintable()
