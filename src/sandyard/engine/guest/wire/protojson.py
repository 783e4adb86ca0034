"""Parse and render protobuf's JSON form: camelCase or snake_case names, null as absent, int64 as a string."""

from __future__ import annotations

import binascii
import functools
import json
import re
import time
from typing import Any

Message = dict[str, Any]


class FieldError(ValueError):
    """A message is not valid JSON, or a field has the wrong type."""


_UPPERCASE = re.compile(r"[A-Z]")
_LONE_SURROGATES = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # without those that stand for bytes of a file name
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def parse(data: bytes) -> Message:
    """Parse a message from JSON. Raises FieldError if it is invalid."""
    if not data:
        return {}
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FieldError(f"unmarshal message: {error}") from None
    if not isinstance(message, dict):
        raise FieldError("unmarshal message: not an object")
    return message


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def render(message: Message) -> bytes:
    return _encode(message).encode()


def get_value(message: Message, name: str) -> Any:
    """Return a field's value by its camelCase name, or None if it is absent."""
    found = message.get(name)
    if found is None and _UPPERCASE.search(name):
        return message.get(_UPPERCASE.sub(lambda letter: "_" + letter.group().lower(), name))
    return found


def get_text(message: Message, name: str) -> str:
    found = get_value(message, name)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise FieldError(f"field {name}: not a string")
    return found


def get_flag(message: Message, name: str) -> bool:
    found = get_value(message, name)
    if found is None:
        return False
    if not isinstance(found, bool):
        raise FieldError(f"field {name}: not a bool")
    return found


def get_uint32(message: Message, name: str) -> int:
    found = get_value(message, name)
    if found is None:
        return 0
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) < 12:
        found = int(found)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= 0xFFFFFFFF:
        raise FieldError(f"field {name}: not a uint32")
    return found


def get_message(message: Message, name: str) -> Message | None:
    found = get_value(message, name)
    if found is not None and not isinstance(found, dict):
        raise FieldError(f"field {name}: not an object")
    return found


def get_texts(message: Message, name: str) -> list[str]:
    found = get_value(message, name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise FieldError(f"field {name}: not a list of strings")
    return found


def get_text_map(message: Message, name: str) -> dict[str, str]:
    found = get_value(message, name)
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(item, str) for item in found.values()):
        raise FieldError(f"field {name}: not a map of strings")
    return found


def get_bytes(message: Message, name: str) -> bytes:
    """Return a `bytes` field: base64 of either alphabet, padded or not."""
    encoded = get_text(message, name).encode("ascii", "replace").translate(_URL_SAFE).rstrip(b"=")
    try:
        return binascii.a2b_base64(encoded + b"=" * (-len(encoded) % 4), strict_mode=True) if encoded else b""
    except binascii.Error:
        raise FieldError(f"field {name}: not base64") from None


@functools.lru_cache(256)
def _format_seconds(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def format_timestamp(nanoseconds: int) -> str:
    """Format a google.protobuf.Timestamp: RFC 3339 with as many digits as needed."""
    seconds, nanos = divmod(nanoseconds, 1_000_000_000)
    whole = _format_seconds(seconds)
    if not nanos:
        return whole + "Z"
    digits = f"{nanos:09d}"
    for size in (3, 6):
        if not digits[size:].strip("0"):
            return f"{whole}.{digits[:size]}Z"
    return f"{whole}.{digits}Z"


def make_printable(name: str) -> str:
    """Return a file name that JSON can contain: bytes that are not UTF-8, and lone surrogates, become U+FFFD."""
    try:
        name.encode()
    except UnicodeEncodeError:
        name = _LONE_SURROGATES.sub("\ufffd", name)
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return name
