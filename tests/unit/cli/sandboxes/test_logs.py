"""Output of commands on a terminal."""

from __future__ import annotations

import pytest

from sandyard.cli.sandboxes.logs import OutputEscaper

HOSTILE = "ok \x1b[1;38;5;9mred\x1b[0m\r\n50 %\r100 %\n\x1b]52;c;aGk=\x07\x1b[2J\x9b1A\x08\u202eé\t.\x1b[3"
ESCAPED = "ok \x1b[1;38;5;9mred\x1b[0m\n50 %\n100 %\n^[]52;c;aGk=^G^[[2J<U+009B>1A^H<U+202E>é\t.^[[3\x1b[0m"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_escapes_what_would_control_a_terminal(size: int) -> None:
    data, escaper = HOSTILE.encode(), OutputEscaper()
    pieces = [escaper.escape(data[start : start + size]) for start in range(0, len(data), size)]
    assert b"".join([*pieces, escaper.finish()]).decode() == ESCAPED


def test_passes_plain_output() -> None:
    escaper = OutputEscaper()
    assert escaper.escape(b"a\n\tb") + escaper.finish() == b"a\n\tb"
