"""What a command wrote, as much of it as a model should read at once, with the place where the rest begins."""

from __future__ import annotations

from pydantic import Field

from sandyard.platform.api.schema import Model, example
from sandyard.platform.db.models import Command
from sandyard.platform.domain.sandboxes.commands import Commands

_LONGEST = 4  # bytes of a character


class Output(Model):
    model_config = example(text="ok\n", offset=0, end=3, total=3)

    text: str = Field(description="Bytes that are no UTF-8 are replaced.")
    offset: int = Field(description="The byte of the stream at which the text begins.")
    end: int = Field(description="The byte after its last one: the offset of what comes next.")
    total: int = Field(description="How many bytes there are so far.")


async def tail(commands: Commands, command: Command, stream: str, limit: int) -> Output:
    """The last `limit` bytes."""
    total: int = getattr(command, f"{stream}_bytes")
    return await page(commands, command, stream, max(0, total - limit), limit)


async def page(commands: Commands, command: Command, stream: str, offset: int, limit: int) -> Output:
    """At most `limit` bytes from there on. No character is cut in two at its end as long as more may come, nor at its
    beginning if a page is begun anywhere."""
    total: int = getattr(command, f"{stream}_bytes")
    data = await commands.files.read(command.id, stream, offset, max(0, min(limit, total - offset)))
    if offset > 0:
        skipped = next((n for n, byte in enumerate(data[:_LONGEST]) if byte & 0xC0 != 0x80), 0)
        offset, data = offset + skipped, data[skipped:]
    if offset + len(data) < total:
        data = data[: len(data) - _cut(data)]
    return Output(text=data.decode(errors="replace"), offset=offset, end=offset + len(data), total=total)


def _cut(data: bytes) -> int:
    """How many bytes at the end are the beginning of a character that is not all there."""
    for back in range(1, min(_LONGEST, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if length > back and back < len(data) else 0
        if byte < 0x80:
            return 0
    return 0
