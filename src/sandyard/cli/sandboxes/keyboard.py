"""Attach the local terminal to a remote shell and restore it afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import Protocol


class Shell(Protocol):
    """A remote shell. `run` lasts until it ends and returns its exit code."""

    async def run(self) -> int: ...
    def send_input(self, data: bytes) -> None: ...
    def send_size(self) -> None: ...


Write = Callable[[bytes], None]
GetSize = Callable[[], tuple[int, int]]


def attach(open_shell: Callable[[Write, GetSize], Shell]) -> int:
    """Send every key to the shell, including Ctrl-C, and show its output until it ends. Return its exit code."""
    with _raw_mode():
        return asyncio.run(_run_shell(open_shell))


async def _run_shell(open_shell: Callable[[Write, GetSize], Shell]) -> int:
    shell = open_shell(_write, _get_size)
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def read_input() -> None:
        data = os.read(descriptor, 65536)
        if data:
            shell.send_input(data)
        else:
            loop.remove_reader(descriptor)

    loop.add_reader(descriptor, read_input)
    loop.add_signal_handler(signal.SIGWINCH, shell.send_size)
    try:
        return await shell.run()
    finally:
        loop.remove_reader(descriptor)
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def _raw_mode() -> Iterator[None]:
    descriptor = sys.stdin.fileno()
    saved = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _get_size() -> tuple[int, int]:
    """Return columns and rows. Terminals that do not know their size report 0."""
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return columns or 80, rows or 24
