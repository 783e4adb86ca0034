"""Determine the destination host of a connection from its first bytes: from the TLS client hello or the HTTP head."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_BYTES = 32 << 10
"""Maximum number of bytes to inspect; a connection without a host by then is treated as another protocol."""

_MAX_NAME_LENGTH = 253  # host names are never longer, and the time to look up a rule grows with the length
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
_METHOD = re.compile(rb"[A-Z]{1,20} ")
_PARTIAL_METHOD = re.compile(rb"[A-Z]{0,20}")
_HOST = re.compile(rb"\nhost:([^\r\n]*)\r?\n", re.IGNORECASE)  # unambiguous, because heads are hostile
_HEAD_END = re.compile(rb"\r?\n\r?\n")


@dataclass(frozen=True, slots=True)
class DetectedHost:
    """`host` is in lower case without port and final dot; None if the first bytes contain none that a rule could
    have."""

    host: str | None


def parse_tls(data: bytes) -> DetectedHost | None:
    """Parse TLS. Return None if more bytes are needed."""
    try:
        message = _extract_client_hello(data)
    except IndexError:
        return None
    if message is None:
        return DetectedHost(None)
    try:
        return DetectedHost(_parse_server_name(message))
    except (IndexError, ValueError):
        return DetectedHost(None)


def parse_http(data: bytes) -> DetectedHost | None:
    """Parse HTTP. Return None if more bytes are needed."""
    if not _METHOD.match(data):
        partial = _PARTIAL_METHOD.match(data)
        return None if partial is not None and partial.end() == len(data) else DetectedHost(None)
    end = _HEAD_END.search(data)
    if end is None:
        return None
    hosts = _HOST.findall(data[: end.end()])
    return DetectedHost(normalise_host(hosts[0].strip(b" \t"), 80) if len(hosts) == 1 else None)


def normalise_host(value: bytes, port: int) -> str | None:
    """Return the normalised name of a Host header, or None if it is not a name or has another port."""
    name, colon, given_port = value.partition(b":")
    if colon and given_port != str(port).encode():
        return None
    try:
        plain = name.decode("ascii").lower().removesuffix(".")
    except UnicodeDecodeError:
        return None
    return plain if 0 < len(plain) <= _MAX_NAME_LENGTH else None


def _extract_client_hello(data: bytes) -> bytes | None:
    """Return the body of a client hello from its records, or None if it is not one. Raises IndexError if it is
    incomplete."""
    message, position = b"", 0
    while True:
        if data[position] != _HANDSHAKE or data[position + 1] != 3:
            return None
        size = int.from_bytes(_slice_exactly(data, position + 3, 2), "big")
        message += data[position + 5 : position + 5 + size]
        is_complete = len(data) >= position + 5 + size
        if len(message) >= 4:
            if message[0] != _CLIENT_HELLO:
                return None
            length = int.from_bytes(message[1:4], "big")
            if len(message) >= 4 + length:
                return message[4 : 4 + length]
        if not is_complete or size == 0:
            raise IndexError
        position += 5 + size


def _parse_server_name(hello: bytes) -> str | None:
    position = 2 + 32
    position += 1 + hello[position]  # session
    position += 2 + int.from_bytes(_slice_exactly(hello, position, 2), "big")  # ciphers
    position += 1 + hello[position]  # compression
    end = position + 2 + int.from_bytes(_slice_exactly(hello, position, 2), "big")
    position += 2
    while position < end:
        kind, size = (
            int.from_bytes(_slice_exactly(hello, position, 2), "big"),
            int.from_bytes(_slice_exactly(hello, position + 2, 2), "big"),
        )
        content = _slice_exactly(hello, position + 4, size)
        if kind == _SERVER_NAME:
            if content[2] != _HOST_NAME:
                return None
            name = (
                _slice_exactly(content, 5, int.from_bytes(_slice_exactly(content, 3, 2), "big")).decode("ascii").lower()
            )
            return name if 0 < len(name) <= _MAX_NAME_LENGTH else None
        position += 4 + size
    return None


def _slice_exactly(data: bytes, position: int, size: int) -> bytes:
    if position + size > len(data):
        raise IndexError
    return data[position : position + size]
