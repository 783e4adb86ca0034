"""Determine the destination host of a connection from its first bytes: from the TLS client hello or the HTTP head."""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 32 << 10
"""Maximum number of bytes to inspect; a connection without a host by then is treated as another protocol."""

_LONGEST_NAME = 253  # host names are never longer, and the time to look up a rule grows with the length
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
_METHOD = re.compile(rb"[A-Z]{1,20} ")
_METHOD_BEGUN = re.compile(rb"[A-Z]{0,20}")
_HOST = re.compile(rb"\nhost:([^\r\n]*)\r?\n", re.IGNORECASE)  # unambiguous, because heads are hostile
_HEAD_END = re.compile(rb"\r?\n\r?\n")


@dataclass(frozen=True, slots=True)
class DetectedHost:
    """`host` is in lower case without port and final dot; None if the first bytes contain none that a rule could have."""

    host: str | None


def parse_tls(data: bytes) -> DetectedHost | None:
    """Parse TLS. Return None if more bytes are needed."""
    try:
        message = _first_message(data)
    except IndexError:
        return None
    if message is None:
        return DetectedHost(None)
    try:
        return DetectedHost(_server_name(message))
    except (IndexError, ValueError):
        return DetectedHost(None)


def parse_http(data: bytes) -> DetectedHost | None:
    """Parse HTTP. Return None if more bytes are needed."""
    if not _METHOD.match(data):
        begun = _METHOD_BEGUN.match(data)
        return None if begun is not None and begun.end() == len(data) else DetectedHost(None)
    end = _HEAD_END.search(data)
    if end is None:
        return None
    hosts = _HOST.findall(data[: end.end()])
    return DetectedHost(normalise_host(hosts[0].strip(b" \t"), 80) if len(hosts) == 1 else None)


def normalise_host(value: bytes, port: int) -> str | None:
    """Return the normalised name of a Host header, or None if it is not a name or has another port."""
    name, colon, said = value.partition(b":")
    if colon and said != str(port).encode():
        return None
    try:
        plain = name.decode("ascii").lower().removesuffix(".")
    except UnicodeDecodeError:
        return None
    return plain if 0 < len(plain) <= _LONGEST_NAME else None


def _first_message(data: bytes) -> bytes | None:
    """Return the body of a client hello from its records, or None if it is not one. Raises IndexError if it is
    incomplete."""
    message, at = b"", 0
    while True:
        if data[at] != _HANDSHAKE or data[at + 1] != 3:
            return None
        size = int.from_bytes(_take(data, at + 3, 2), "big")
        message += data[at + 5 : at + 5 + size]
        whole = len(data) >= at + 5 + size
        if len(message) >= 4:
            if message[0] != _CLIENT_HELLO:
                return None
            length = int.from_bytes(message[1:4], "big")
            if len(message) >= 4 + length:
                return message[4 : 4 + length]
        if not whole or size == 0:
            raise IndexError
        at += 5 + size


def _server_name(hello: bytes) -> str | None:
    at = 2 + 32
    at += 1 + hello[at]  # session
    at += 2 + int.from_bytes(_take(hello, at, 2), "big")  # ciphers
    at += 1 + hello[at]  # compression
    end = at + 2 + int.from_bytes(_take(hello, at, 2), "big")
    at += 2
    while at < end:
        kind, size = int.from_bytes(_take(hello, at, 2), "big"), int.from_bytes(_take(hello, at + 2, 2), "big")
        content = _take(hello, at + 4, size)
        if kind == _SERVER_NAME:
            if content[2] != _HOST_NAME:
                return None
            name = _take(content, 5, int.from_bytes(_take(content, 3, 2), "big")).decode("ascii").lower()
            return name if 0 < len(name) <= _LONGEST_NAME else None
        at += 4 + size
    return None


def _take(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise IndexError
    return data[at : at + size]
