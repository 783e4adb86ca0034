"""Limit how much an agent may send. An agent that exceeds the limits is ended, because its messages are stored and
shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sandyard.platform.domain.agents.acp import wire
from sandyard.platform.domain.agents.acp.transcript import Transcript

BATCH_LINES, BATCH_BYTES = 100, 1 << 20
"""Limits of one batch, which is written in one transaction: others need to write too."""
MAX_MESSAGES, MAX_CHARACTERS = 20_000, 64 << 20
"""Limits of one turn: messages, and approximately the characters in them."""
MAX_CHANGES, MAX_CHANGED_CHARACTERS = 500_000, 16 << 30
"""Limits of one turn: changes of messages that were stored before, and approximately the characters that were stored again."""
MAX_REQUESTS, MAX_REQUEST_BYTES = 10_000, 64 << 20
"""Limits of one process: requests, cancellations of them and answers sent by the agent, and bytes of them."""
MAX_NOTIFICATIONS = 100_000
"""Limit of one process: other notifications, which are ignored. Updates are limited by what is stored of them."""

Line = tuple[int, bytes]


def split_into_batches(lines: Sequence[Line], consumed: int) -> Iterator[tuple[Sequence[Line], int]]:
    """Split lines into batches, each with the offset up to which the output was read."""
    begin = size = 0
    for at, (end, line) in enumerate(lines):
        size += len(line)
        if at + 1 < len(lines) and (at + 1 - begin >= BATCH_LINES or size >= BATCH_BYTES):
            yield lines[begin : at + 1], end
            begin, size = at + 1, 0
    if lines:
        yield lines[begin:], consumed


class MessageCounter:
    """Count the messages of one process, as far as this platform has seen it."""

    def __init__(self) -> None:
        self._requests = self._request_bytes = self._notifications = 0

    def count(self, message: wire.Incoming, size: int) -> None:
        if not isinstance(message, wire.Notification) or message.method == wire.CANCEL_REQUEST:
            self._requests += 1
            self._request_bytes += size
        elif message.method != wire.UPDATE:
            self._notifications += 1

    def find_exceeded_limit(self, transcript: Transcript) -> str | None:
        """Return a sentence if a limit is exceeded."""
        if len(transcript) > MAX_MESSAGES or transcript.weight > MAX_CHARACTERS:
            return f"The agent has sent more than can be stored in one turn: {MAX_MESSAGES} messages or {MAX_CHARACTERS >> 20} MiB."
        if transcript.changes_stored > MAX_CHANGES or transcript.characters_stored_again > MAX_CHANGED_CHARACTERS:
            return (
                f"The agent has made more than {MAX_CHANGES} changes of its messages in one turn, or of more than "
                f"{MAX_CHANGED_CHARACTERS >> 30} GiB of text."
            )
        if self._requests > MAX_REQUESTS or self._request_bytes > MAX_REQUEST_BYTES:
            return f"The agent has sent more than {MAX_REQUESTS} requests, or more than {MAX_REQUEST_BYTES >> 20} MiB of them."
        if self._notifications > MAX_NOTIFICATIONS:
            return f"The agent has sent more than {MAX_NOTIFICATIONS} notifications that are not updates."
        return None
