from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sandyard.kit.logging import bind_fields, configure, get_logger
from sandyard.kit.secret import Secret


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], root.level = before


def test_colours_are_for_terminals_only() -> None:
    screen, file, machine = Screen(), io.StringIO(), Screen()
    for stream, as_json in ((screen, False), (file, False), (machine, True)):
        configure(stream=stream, as_json=as_json)
        get_logger("x").info("sandbox_created", sandbox="i1", token=Secret("hunter2"), inner={"k": Secret("hunter2")})
        assert "***" in stream.getvalue() and "hunter2" not in stream.getvalue()
    assert "\x1b[" in screen.getvalue() and "sandbox_created" in screen.getvalue()
    assert "\x1b[" not in file.getvalue() and "\x1b[" not in machine.getvalue()


def test_control_characters_in_fields_are_escaped() -> None:
    screen = Screen()
    configure(stream=screen)
    get_logger("x").info("file_read", name="\x1b]0;gotcha\x07\r", ms=1.23456)
    assert "\x1b]0" not in screen.getvalue() and "\r" not in screen.getvalue() and "1.235" in screen.getvalue()


def test_tracebacks_are_plain_everywhere() -> None:
    for stream in (Screen(), io.StringIO()):
        configure(stream=stream)
        try:
            int("boom")
        except ValueError as error:
            get_logger("x").error("verb_failed", exc=error, sandbox="i1")
        assert 'int("boom")' in stream.getvalue() and "ValueError: invalid literal" in stream.getvalue()


async def test_bound_fields_are_added_in_their_own_context() -> None:
    stream = io.StringIO()
    configure(as_json=True, stream=stream)
    log = get_logger("x")

    async def work(name: str) -> None:
        with bind_fields(request=name):
            await asyncio.sleep(0)
            log.info("step_done", own=name)
            await asyncio.create_task(inner(name))

    async def inner(name: str) -> None:
        log.info("inner_done", own=name)

    await asyncio.gather(work("one"), work("two"))
    log.info("all_done")
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert all(entry["request"] == entry["own"] for entry in entries[:-1]) and len(entries) == 5
    assert "request" not in entries[-1]


def test_fields_of_an_event_override_bound_fields() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    with bind_fields(sandbox="outer", request="r1"):
        get_logger("x").info("sandbox_seen", sandbox="inner")
    assert stream.getvalue().endswith(" info sandbox_seen sandbox=inner request=r1\n")


def test_lines_of_other_libraries_have_the_same_format() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    logging.getLogger("uvicorn").warning("went %s\nwrong", "quite")
    assert stream.getvalue().endswith(" warning went quite\\nwrong\n") and stream.getvalue().count("\n") == 1


def test_fields_may_have_any_name() -> None:
    for as_json in (False, True):
        stream = io.StringIO()
        configure(stream=stream, as_json=as_json)
        get_logger("x").info("thing_seen", name="n", msg="m", args=(1, 2), level_="l", self_="s")
        assert "thing_seen" in stream.getvalue() and "n" in stream.getvalue()


def test_importing_loads_neither_structlog_nor_rich() -> None:
    """A command that logs nothing does not load structlog, and an engine does not load rich."""
    script = (
        "import sys, sandyard.kit.logging as l; assert 'structlog' not in sys.modules;"
        "l.configure(); assert 'structlog' in sys.modules and 'rich' not in sys.modules;"
        "import rich.console; print('fine')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr
