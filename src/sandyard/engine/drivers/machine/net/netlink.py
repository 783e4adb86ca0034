"""A minimal netlink implementation to configure interfaces: messages, attributes, acknowledgements and dumps.

Blocking, and meant for separate threads. Ten times less work per sandbox than a general library, because a whole
namespace is configured with two datagrams.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST, _ACK, _DUMP = 0x001, 0x004, 0x300
REPLACE, EXCLUSIVE, CREATE = 0x100, 0x200, 0x400
_DUMP_INTERRUPTED, _CAPPED, _ACK_TLVS = 0x010, 0x100, 0x200
_SOL_NETLINK, _EXT_ACK, _CAP_ACK = 270, 11, 10
_NLMSGERR_ATTR_MSG = 1
_TYPE_MASK = 0x3FFF  # without the "nested" and "network byte order" bits
_NESTED = 0x8000
_RECEIVE_BYTES = 1 << 18


class NetlinkError(OSError):
    """The kernel refused a request; `strerror` contains its own explanation if it gave one."""


@dataclass(frozen=True, slots=True)
class Message:
    """A request: its type, the flags in addition to REQUEST and ACK, and everything after the header."""

    type: int
    payload: bytes
    flags: int = 0


def pack_attribute(kind: int, data: bytes) -> bytes:
    """Return one attribute, padded to four bytes."""
    return _ATTRIBUTE.pack(4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def pack_nested(kind: int, *attributes: bytes) -> bytes:
    return pack_attribute(kind | _NESTED, b"".join(attributes))


def pack_u32(kind: int, value: int) -> bytes:
    return pack_attribute(kind, struct.pack("=I", value))


def pack_text(kind: int, value: str) -> bytes:
    return pack_attribute(kind, value.encode() + b"\0")


def parse_attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes by their types; of a repeated type only the last one."""
    return dict(split_attributes(data))


def split_attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the content of each attribute."""
    position = 0
    while position + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, position)
        if length < 4:
            return
        yield kind & _TYPE_MASK, data[position + 4 : position + length]
        position += (length + 3) & ~3


class Netlink:
    """A netlink socket in the current network namespace of the calling thread; it stays there when the thread moves."""

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        try:
            self._socket.bind((0, 0))
            for option in (_EXT_ACK, _CAP_ACK):
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            # A missing answer must not block the engine: the kernel answers at once or not at all.
            self._socket.settimeout(30)
        except OSError:
            self._socket.close()
            raise
        self._sequence = itertools.count(1)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, *messages: Message) -> None:
        """Send all messages in one datagram; the kernel processes each in turn, also after a failure. Raises the first
        failure, once all are answered."""
        self._socket.send(b"".join(self._frame(message, _ACK) for message in messages))
        pending, failure = len(messages), None
        while pending:
            for kind, flags, payload in split_messages(self._socket.recv(_RECEIVE_BYTES)):
                if kind == _NLMSG_ERROR:
                    pending -= 1
                    failure = failure or _parse_failure(flags, payload)
        if failure:
            raise failure

    def dump(self, message: Message) -> list[bytes]:
        """Return the payloads of a dump. Repeated if the kernel reports that the tables changed in the meantime."""
        for _ in range(10):
            payloads, complete = self._dump(message)
            if complete:
                return payloads
        return payloads

    def _dump(self, message: Message) -> tuple[list[bytes], bool]:
        self._socket.send(self._frame(message, _DUMP))
        payloads: list[bytes] = []
        complete = True
        while True:
            for kind, flags, payload in split_messages(self._socket.recv(_RECEIVE_BYTES)):
                complete = complete and not flags & _DUMP_INTERRUPTED
                if kind == _NLMSG_DONE:
                    return payloads, complete
                if kind == _NLMSG_ERROR:
                    failure = _parse_failure(flags, payload)
                    if failure:
                        raise failure
                    return payloads, complete
                payloads.append(payload)

    def stream(self, message: Message) -> Iterator[bytes]:
        """Yield the payloads of a dump as they arrive, for tables too long to be kept. If it is not read to its end,
        call `close`."""
        self._socket.send(self._frame(message, _DUMP))
        while True:
            for kind, flags, payload in split_messages(self._socket.recv(_RECEIVE_BYTES)):
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    raise _parse_failure(flags, payload) or NetlinkError(errno.EPROTO, "the kernel ended a dump")
                yield payload

    def _frame(self, message: Message, flags: int) -> bytes:
        length = _HEADER.size + len(message.payload)
        header = _HEADER.pack(length, message.type, _REQUEST | flags | message.flags, next(self._sequence), 0)
        return header + message.payload + b"\0" * (-length % 4)


def split_messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield type, flags and payload of each message in a datagram."""
    position = 0
    while position + _HEADER.size <= len(data):
        length, kind, flags, _, _ = _HEADER.unpack_from(data, position)
        if length < _HEADER.size:
            return
        yield kind, flags, data[position + _HEADER.size : position + length]
        position += (length + 3) & ~3


def _parse_failure(flags: int, payload: bytes) -> NetlinkError | None:
    number = -_ERROR.unpack_from(payload)[0]
    if number == 0:
        return None
    reason = os.strerror(number)
    if flags & _ACK_TLVS and flags & _CAPPED:
        detail = parse_attributes(payload[_ERROR.size + _HEADER.size :]).get(_NLMSGERR_ATTR_MSG)
        if detail:
            reason = f"{reason}: {detail.rstrip(bytes(1)).decode(errors='replace')}"
    return NetlinkError(number, reason)
