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
    def type(self, data: bytes) -> None: ...
    def resized(self) -> None: ...


Write = Callable[[bytes], None]
Size = Callable[[], tuple[int, int]]


def attach(open_shell: Callable[[Write, Size], Shell]) -> int:
    """Send every key to the shell, including Ctrl-C, and show its output until it ends. Return its exit code."""
    with _raw():
        return asyncio.run(_attend(open_shell))


async def _attend(open_shell: Callable[[Write, Size], Shell]) -> int:
    shell = open_shell(_write, _size)
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        data = os.read(descriptor, 65536)
        if data:
            shell.type(data)
        else:
            loop.remove_reader(descriptor)

    loop.add_reader(descriptor, readable)
    loop.add_signal_handler(signal.SIGWINCH, shell.resized)
    try:
        return await shell.run()
    finally:
        loop.remove_reader(descriptor)
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _size() -> tuple[int, int]:
    """Return columns and rows. Terminals that do not know their size report 0."""
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return columns or 80, rows or 24
