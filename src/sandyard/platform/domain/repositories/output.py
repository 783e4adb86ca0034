"""Decode the output of git, which may come from a sandbox: arbitrary bytes of any length."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TypeVar

_THREAD_THRESHOLD = 256 << 10
_MAX_NAME_BYTES = 4096
"""Maximum number of bytes of a name to show. No file system can open a longer one."""
_COMMIT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
T = TypeVar("T")


async def parse_output(output: bytes, parse: Callable[[bytes], T]) -> T:
    """Parse output, in a thread if it is long: a sandbox may send any amount, which would block the event loop."""
    return await asyncio.to_thread(parse, output) if len(output) > _THREAD_THRESHOLD else parse(output)


def is_commit_id(text: str) -> bool:
    """Return whether the text has the form of a full commit id."""
    return _COMMIT_ID.fullmatch(text) is not None


def decode_name(name: bytes) -> str:
    """Decode a file name for display: replaces invalid UTF-8 and truncates to the longest name a file system accepts."""
    return name[:_MAX_NAME_BYTES].decode(errors="replace")
