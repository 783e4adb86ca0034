"""Log events: a `noun_verb`, then the ids that say which one.

    log = get_logger(__name__)
    log.info("sandbox_paused", sandbox=sandbox.id, kind="memory")

Two formats: one line of `key=value` for people, one JSON object per line for machines. Values are taken as they are,
so a `Secret` prints as `***` in both.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import IO, Any

_FIELDS = "sandyard_fields"


class Logger:
    """A standard logger whose methods take an event and its fields."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: Any) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, *, exc: BaseException | None = None, **fields: Any) -> None:
        self._emit(logging.ERROR, event, fields, exc)

    def _emit(self, level: int, event: str, fields: dict[str, Any], exc: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            info = None if exc is None else (type(exc), exc, exc.__traceback__)
            self._logger.log(level, event, extra={_FIELDS: fields}, exc_info=info)


def get_logger(name: str) -> Logger:
    return Logger(logging.getLogger(name))


class TextFormatter(logging.Formatter):
    """`2026-01-31T10:00:00.123Z info sandbox_created sandbox=i… ms=2.1`"""

    def format(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, Any] = getattr(record, _FIELDS, {})
        words = [_timestamp(record.created), record.levelname.lower(), _one_line(record.getMessage())]
        words += [f"{key}={_quoted(value)}" for key, value in fields.items()]
        line = " ".join(words)
        return line if not record.exc_info else f"{line}\n{self.formatException(record.exc_info)}"


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {"time": _timestamp(record.created), "level": record.levelname.lower()}
        entry |= {"event": record.getMessage(), "logger": record.name}
        entry |= getattr(record, _FIELDS, {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure(level: str = "info", *, as_json: bool = False, stream: IO[str] | None = None) -> None:
    """Send the log events of the whole process to `stream` (standard error). Called once, by a composition root."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _timestamp(created: float) -> str:
    seconds, millis = divmod(int(created * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{millis:03}Z"


def _one_line(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _quoted(value: Any) -> str:
    text = _one_line(f"{value:.3f}" if isinstance(value, float) else str(value))
    return json.dumps(text, ensure_ascii=False) if not text or " " in text or '"' in text or "=" in text else text
