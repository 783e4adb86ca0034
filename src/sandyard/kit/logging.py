"""Structured log events: a `noun_verb` name followed by fields such as ids.

    log = get_logger(__name__)
    log.info("sandbox_paused", sandbox=sandbox.id, kind="memory")

    with bind_fields(request="req_1"):  # added to every event inside, also in tasks started inside
        …

Loggers are the standard library's, so that other libraries' events look the same. structlog merges the bound fields and renders the
line: `key=value` with colours on a terminal, or one JSON object per line for machines. Values are not converted before, so a `Secret`
prints as `***` in every format.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager
from typing import IO, Any

FIELDS = "sandyard_fields"
"""The attribute of a log record that holds the fields of its event."""
Fields = MutableMapping[str, Any]
Step = Callable[[Any, str, Fields], Any]


class Logger:
    """A standard logger whose methods take an event and its fields."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.WARNING):
            self._emit(logging.WARNING, event, fields)

    def error(self, event: str, *, exc: BaseException | None = None, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.ERROR):
            self._emit(logging.ERROR, event, fields, None if exc is None else (type(exc), exc, exc.__traceback__))

    def _emit(self, level: int, event: str, fields: dict[str, Any], exc_info: Any = None) -> None:
        """Create the record without finding the caller: the event name identifies it, and walking the stack takes longer than the rest."""
        record = logging.LogRecord(self._logger.name, level, "", 0, event, None, exc_info)
        record.__dict__[FIELDS] = fields
        self._logger.handle(record)


def get_logger(name: str) -> Logger:
    return Logger(logging.getLogger(name))


def bind_fields(**fields: Any) -> AbstractContextManager[None]:
    """Add these fields to every event until the end of the block, here and in tasks started here."""
    context: AbstractContextManager[None] = _structlog("contextvars").bound_contextvars(**fields)
    return context


def configure(level: str = "info", *, as_json: bool = False, stream: IO[str] | None = None) -> None:
    """Send the log events of the whole process to `stream` (default: standard error). Call once, at program start."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(as_json=as_json, colours=not as_json and stream.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _Formatter(logging.Formatter):
    """Runs structlog's processors over a record: bound fields are merged first, the line is rendered last."""

    def __init__(self, *, as_json: bool, colours: bool) -> None:
        super().__init__()
        self._merge: Step = _structlog("contextvars").merge_contextvars
        self._shows_logger = as_json
        self._time = "timestamp" if colours else "time"
        self._render: Step = _render_plain
        if as_json:
            encode = json.JSONEncoder(default=str).encode
            self._render = _structlog("processors").JSONRenderer(serializer=lambda entry, **_: encode(entry))
        elif colours:
            dev = _structlog("dev")
            console = dev.ConsoleRenderer(colors=True, sort_keys=False, exception_formatter=dev.plain_traceback)
            self._render = lambda logger, name, entry: console(
                logger, name, {k: _escape_value(v) for k, v in entry.items()}
            )

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        entry: dict[str, Any] = {
            self._time: _format_timestamp(record.created),
            "level": level,
            "event": record.getMessage(),
        }
        if self._shows_logger:
            entry["logger"] = record.name
        entry |= getattr(record, FIELDS, {})
        entry = self._merge(None, level, entry)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        line: str = self._render(None, level, entry)
        return line


def _render_plain(_: Any, __: str, entry: Fields) -> str:
    """`2026-01-31T10:00:00.123Z info sandbox_created sandbox=i… ms=2.1`"""
    trace = entry.pop("exception", None)
    words = [entry.pop("time"), entry.pop("level"), _escape_line(str(entry.pop("event")))]
    words += [f"{key}={_quote(value)}" for key, value in entry.items()]
    return " ".join(words) if trace is None else " ".join(words) + "\n" + trace


@functools.lru_cache(maxsize=4)
def _format_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _format_timestamp(created: float) -> str:
    seconds, millis = divmod(int(created * 1000), 1000)
    return f"{_format_second(seconds)}.{millis:03}Z"


def _escape_line(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _quote(value: Any) -> str:
    text = _escape_line(f"{value:.3f}" if isinstance(value, float) else str(value))
    return json.dumps(text, ensure_ascii=False) if not text or " " in text or '"' in text or "=" in text else text


def _escape_value(value: Any) -> Any:
    """Escape control characters so that a terminal does not interpret them. A traceback keeps its lines."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return "\n".join(_escape_line(line) for line in str(value).split("\n"))


@functools.cache
def _structlog(part: str) -> Any:
    """Import part of structlog on first use, because importing it is slow. rich is hidden from structlog, which would load it for
    tracebacks that are not used here, at a cost of half a second and 7 MiB per engine."""
    if "rich" in sys.modules:
        return importlib.import_module(f"structlog.{part}")
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module(f"structlog.{part}")
    finally:
        del sys.modules["rich"]
