"""The parts of DNS messages that a forwarder needs: one question, and the addresses that answer it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

_HEADER = struct.Struct("!HHHHHH")
_RECORD = struct.Struct("!IH")  # its TTL and length
_RESPONSE, _OPCODE, _AUTHORITATIVE, _RECURSION = 0x8000, 0x7800, 0x0400, 0x0180
_A_IN, _CNAME_IN = b"\0\1\0\1", b"\0\5\0\1"
_POINTER = b"\xc0\x0c"  # to the name in the question
_MAX_LABEL, _MAX_NAME = 63, 255
_MAX_PARTS = 2000  # labels and pointers
_MAX_RECORDS, _MAX_ALIASES, _MAX_TTL = 128, 16, (1 << 31) - 1
SERVFAIL, NOTIMP, REFUSED = 2, 4, 5


@dataclass(frozen=True, slots=True)
class Question:
    """A plain query. `name` is in lower case without the final dot; invalid bytes appear as U+FFFD."""

    id: int
    name: str
    section: bytes  # the question section as it was sent

    @property
    def asks_for_address(self) -> bool:
        """Whether it asks for an A record."""
        return self.section[-4:] == _A_IN

    def make_answer(self, address: IPv4Address, ttl: int) -> bytes:
        """Return a response with that address for one of our own names; without records if another type is
        requested."""
        count = 1 if self.asks_for_address else 0
        head = _HEADER.pack(self.id, _RESPONSE | _AUTHORITATIVE | _RECURSION, 1, count, 0, 0) + self.section
        return head + (_POINTER + _A_IN + _RECORD.pack(ttl, 4) + address.packed) * count

    def make_empty_reply(self, code: int) -> bytes:
        """Return an empty response with that code."""
        return _HEADER.pack(self.id, _RESPONSE | _RECURSION | code, 1, 0, 0, 0) + self.section


def parse_question(message: bytes) -> Question | None:
    """Parse a query. Return None for anything that is not one ordinary question."""
    if len(message) < _HEADER.size:
        return None
    number, flags, questions, answers, _, _ = _HEADER.unpack_from(message)
    if flags & (_RESPONSE | _OPCODE) or questions != 1 or answers:
        return None
    labels: list[str] = []
    position = _HEADER.size
    while position < len(message):
        length = message[position]
        position += 1
        if length == 0:
            end = position + 4
            if end > len(message):
                return None
            return Question(number, ".".join(labels), message[_HEADER.size : end])
        if length > _MAX_LABEL or position + length > len(message) or position - _HEADER.size > _MAX_NAME:
            return None
        # A dot within a label must not make it look like two labels.
        labels.append(
            message[position : position + length].decode("ascii", errors="replace").lower().replace(".", "\ufffd")
        )
        position += length
    return None


def replace_id(message: bytes, number: int) -> bytes:
    return number.to_bytes(2, "big") + message[2:]


def is_answer_to(message: bytes, number: int, question: Question) -> bool:
    """Return whether this is a response with that number to that question, and not forged by a third party."""
    if len(message) < _HEADER.size:
        return False
    given, flags, questions, _, _, _ = _HEADER.unpack_from(message)
    if given != number or not flags & _RESPONSE:
        return False
    if questions == 0:  # some servers leave it out when they refuse
        return bool(flags & 0x000F)
    section = message[_HEADER.size : _HEADER.size + len(question.section)]
    return section.lower() == question.section.lower()


def parse_addresses(message: bytes) -> dict[IPv4Address, int]:
    """Return the A records of the requested name, following its aliases, with the shortest TTL on the way. Reads no more than
    the first _MAX_RECORDS records, because a sandbox may have chosen the answer and the caller's event loop waits."""
    try:
        name, aliases, addresses = _parse_answer(message)
    except (_MalformedError, IndexError, struct.error):
        return {}
    ttl = _MAX_TTL
    for _ in range(_MAX_ALIASES):
        if name in addresses:
            ttl = min(ttl, *addresses[name].values())
            return dict.fromkeys(addresses[name], ttl)
        if name not in aliases:
            return {}
        name, alias_ttl = aliases[name]
        ttl = min(ttl, alias_ttl)
    return {}


class _MalformedError(Exception):
    pass


def _parse_answer(
    message: bytes,
) -> tuple[bytes, dict[bytes, tuple[bytes, int]], dict[bytes, dict[IPv4Address, int]]]:
    """Return the requested name, the aliases by name, and the addresses by name; both with their TTLs."""
    _, _, questions, answers, _, _ = _HEADER.unpack_from(message)
    if questions != 1:
        raise _MalformedError
    names = _NameReader(message)
    requested, position = names.read(_HEADER.size)
    position += len(_A_IN)
    aliases: dict[bytes, tuple[bytes, int]] = {}
    addresses: dict[bytes, dict[IPv4Address, int]] = {}
    for _ in range(min(answers, _MAX_RECORDS)):
        owner, position = names.read(position)
        kind, ttl, length = message[position : position + 4], *_RECORD.unpack_from(message, position + 4)
        position += 4 + _RECORD.size
        data = message[position : position + length]
        if len(data) < length:
            raise _MalformedError
        ttl = ttl if ttl <= _MAX_TTL else 0  # RFC 2181
        if kind == _A_IN and length == 4:
            addresses.setdefault(owner, {})[IPv4Address(data)] = ttl
        elif kind == _CNAME_IN:
            aliases.setdefault(owner, (names.read(position)[0], ttl))
        position += length
    return requested, aliases, addresses


class _NameReader:
    """Reads names in a message, which have no more than _MAX_PARTS labels and pointers together."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._parts_left = _MAX_PARTS

    def read(self, position: int) -> tuple[bytes, int]:
        """Return the name at this position, as it is sent but in lower case and without pointers, and the position after it."""
        message = self._message
        labels: list[bytes] = []
        size, end = 0, 0
        while self._parts_left:
            self._parts_left -= 1
            length = message[position]
            if length >= _POINTER[0]:
                end = end or position + 2
                position = (length & 0x3F) << 8 | message[position + 1]
                continue
            label = message[position : position + 1 + length]
            position, size = position + 1 + length, size + 1 + length
            if length > _MAX_LABEL or len(label) <= length or size > _MAX_NAME:
                break
            labels.append(label)
            if length == 0:
                return b"".join(labels).lower(), end or position
        raise _MalformedError
