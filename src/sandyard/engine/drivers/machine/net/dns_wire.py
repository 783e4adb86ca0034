"""The parts of DNS messages that a forwarder needs: one question, and the addresses that answer it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

import dns.exception
import dns.message
import dns.name
import dns.rdataclass
import dns.rdatatype

_HEADER = struct.Struct("!HHHHHH")
_RECORD = struct.Struct("!IH")  # its TTL and length
_RESPONSE, _OPCODE, _AUTHORITATIVE, _RECURSION = 0x8000, 0x7800, 0x0400, 0x0180
_A_IN = b"\0\1\0\1"
_POINTER = b"\xc0\x0c"  # to the name in the question
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
        if length > 63 or position + length > len(message) or position - _HEADER.size > 255:
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
    """Return the A records of the requested name, following its aliases, with the shortest TTL on the way."""
    try:
        parsed = dns.message.from_wire(message, ignore_trailing=True)
    except (dns.exception.DNSException, ValueError):
        return {}
    if not parsed.question:
        return {}
    name, ttl = parsed.question[0].name, 1 << 31
    for _ in range(16):
        found = parsed.get_rrset(parsed.answer, name, dns.rdataclass.IN, dns.rdatatype.A)
        if found is not None:
            return {IPv4Address(item.address): min(ttl, found.ttl) for item in found}
        alias = parsed.get_rrset(parsed.answer, name, dns.rdataclass.IN, dns.rdatatype.CNAME)
        if alias is None:
            return {}
        name, ttl = alias[0].target, min(ttl, alias.ttl)
    return {}
