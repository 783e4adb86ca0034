"""Jupyter's messages: made, signed and read."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DELIMITER = b"<IDS|MSG>"
VERSION = "5.3"


class BadMessageError(ValueError):
    """Not a message of Jupyter's."""


@dataclass(frozen=True, slots=True)
class Message:
    """`parent` is the id of the request it belongs to, empty when there is none."""

    kind: str
    parent: str
    content: Mapping[str, Any]


class Signer:
    """Makes messages of one session with a kernel."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._session = uuid.uuid4().hex

    def message(
        self, kind: str, content: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
    ) -> tuple[str, list[bytes]]:
        """Its id, and the frames to send."""
        message_id = uuid.uuid4().hex
        header = {
            "msg_id": message_id,
            "session": self._session,
            "username": "interpreter",
            "date": datetime.datetime.now(datetime.UTC).isoformat(),
            "msg_type": kind,
            "version": VERSION,
        }
        parts = [json.dumps(part).encode() for part in (header, {}, metadata or {}, content)]
        digest = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            digest.update(part)
        return message_id, [DELIMITER, digest.hexdigest().encode(), *parts]


def read(frames: list[bytes]) -> Message:
    """Raises BadMessageError."""
    try:
        start = frames.index(DELIMITER) + 2
        header, parent = json.loads(frames[start]), json.loads(frames[start + 1])
        content = json.loads(frames[start + 3])
        return Message(str(header["msg_type"]), str((parent or {}).get("msg_id", "")), content)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadMessageError(f"the kernel sent something else than a message: {error}") from error


def execute(code: str, *, silent: bool = False) -> dict[str, Any]:
    """The content of a request to run code. A failure of one does not cancel those that wait behind it: they may be
    other people's."""
    return {
        "code": code,
        "silent": silent,
        "store_history": not silent,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,
    }
