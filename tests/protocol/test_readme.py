"""The program of README.md does what its comments say."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest

from tests.documents import guides
from tests.harness.processes import ROOT


@pytest.mark.timeout(120)
def test_the_program_of_the_readme() -> None:
    (program,) = guides.list_programs(ROOT / "README.md", "python")
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, "README.md", "exec"), found)
    try:
        assert printed.getvalue() == "still here\n"
        assert found["twin"].files.read("hello.txt") == "still here"
    finally:
        found["twin"].kill()
