"""Command output in pieces of a size suitable for a model, with the offset of the next piece."""

from __future__ import annotations

from pydantic import Field

from sandyard.platform.api.schema import Model, example
from sandyard.platform.db.models import Command
from sandyard.platform.domain.sandboxes.commands import Commands

_MAX_CHARACTER_BYTES = 4  # bytes of the longest UTF-8 character


class Output(Model):
    model_config = example(text="ok\n", offset=0, end=3, total=3)

    text: str = Field(description="The output. Bytes that are not valid UTF-8 are replaced.")
    offset: int = Field(description="The byte of the stream at which the text starts.")
    end: int = Field(description="The offset of the next piece.")
    total: int = Field(description="Number of bytes written so far.")


async def get_tail(commands: Commands, command: Command, stream: str, limit: int) -> Output:
    """Return the last `limit` bytes."""
    total: int = getattr(command, f"{stream}_bytes")
    return await get_page(commands, command, stream, max(0, total - limit), limit)


async def get_page(commands: Commands, command: Command, stream: str, offset: int, limit: int) -> Output:
    """Return at most `limit` bytes from `offset` on.

    No character is cut in two at the end while more output may follow, nor at the beginning if `offset` is inside one.
    """
    total: int = getattr(command, f"{stream}_bytes")
    data = await commands.files.read(command.id, stream, offset, max(0, min(limit, total - offset)))
    if offset > 0:
        skipped = next((n for n, byte in enumerate(data[:_MAX_CHARACTER_BYTES]) if byte & 0xC0 != 0x80), 0)
        offset, data = offset + skipped, data[skipped:]
    if offset + len(data) < total:
        data = data[: len(data) - _count_incomplete_bytes(data)]
    return Output(text=data.decode(errors="replace"), offset=offset, end=offset + len(data), total=total)


def _count_incomplete_bytes(data: bytes) -> int:
    """Return how many bytes at the end belong to an incomplete character."""
    for back in range(1, min(_MAX_CHARACTER_BYTES, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            is_all = back == len(data)  # then it is returned, or a reader with a small limit would never get further
            return back if length > back and not is_all else 0
        if byte < 0x80:
            return 0
    return 0
