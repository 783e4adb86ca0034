"""Jupyter messages: creating, signing and parsing."""

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
    """The data is not a Jupyter message."""


@dataclass(frozen=True, slots=True)
class Message:
    """`parent` is the id of the request it belongs to, empty if there is none."""

    kind: str
    parent: str
    content: Mapping[str, Any]


class Signer:
    """Creates messages of one session with a kernel."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._session = uuid.uuid4().hex

    def make_message(
        self, kind: str, content: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
    ) -> tuple[str, list[bytes]]:
        """Return the message's id and the frames to send."""
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


def parse_message(frames: list[bytes]) -> Message:
    """Parse a message. Raises BadMessageError."""
    try:
        start = frames.index(DELIMITER) + 2
        header, parent = json.loads(frames[start]), json.loads(frames[start + 1])
        content = json.loads(frames[start + 3])
        return Message(str(header["msg_type"]), str((parent or {}).get("msg_id", "")), content)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadMessageError(f"the kernel sent an invalid message: {error}") from error


def make_execute_content(code: str, *, silent: bool = False) -> dict[str, Any]:
    """Return the content of a request to run code. A failure does not cancel the requests queued behind it, because
    they may come from other clients."""
    return {
        "code": code,
        "silent": silent,
        "store_history": not silent,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,
    }
