"""Traces, metrics and logs for an OpenTelemetry collector (OTLP over HTTP). Off unless `configure` is called with an endpoint.

    with telemetry.span("driver.create", sandbox=sandbox_id):
        …

Spans inside others, also in tasks started there, become their children. `make_headers` passes the current span on to another
process, and `traceparent` stores it for later work. While telemetry is off, all of these do nothing.

Names and attributes of spans contain ids and names, never what users write. Logs are sent as they are written: secrets are masked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families
from pydantic import Field, field_validator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandyard import __version__
from sandyard.kit.errors import UnsupportedError
from sandyard.kit.logging import FIELDS, get_logger
from sandyard.kit.secret import Secret
from sandyard.kit.settings import Settings

if TYPE_CHECKING:
    from sandyard.kit.telemetry_sdk import Exporter

log = get_logger(__name__)

TRACEPARENT = "traceparent"
_exporter: Exporter | None = None
_NOTHING = contextlib.nullcontext()


class TelemetrySettings(Settings):
    """Settings of a process that can send telemetry."""

    otlp_endpoint: str | None = None
    """URL of an OpenTelemetry collector (OTLP over HTTP), such as `http://127.0.0.1:4318`, without `/v1/traces`. None:
    telemetry is off."""
    otlp_headers: Secret | None = None
    """Headers of requests to the collector: `name=value` pairs, separated by commas."""
    otlp_metrics_interval_s: float = Field(default=60, gt=0)
    """How often metrics are sent. They are those of `/metrics`."""

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must be an http or https URL")
        return value

    @field_validator("otlp_headers", mode="before")
    @classmethod
    def _check_headers(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        _parse_headers(value)
        return Secret(value)


def configure(service: str, settings: TelemetrySettings) -> None:
    """Send the telemetry of this process, if the settings name a collector. Call after logging is configured. Raises UnsupportedError
    if the OpenTelemetry SDK is not installed."""
    global _exporter  # noqa: PLW0603 - spans are created everywhere, like log events
    if settings.otlp_endpoint is None:
        return
    headers = _parse_headers(settings.otlp_headers.reveal()) if settings.otlp_headers else {}
    try:
        from sandyard.kit.telemetry_sdk import Exporter  # noqa: PLC0415 - it takes a quarter of a second and 15 MB
    except ImportError as error:
        raise UnsupportedError(
            f"Telemetry needs the OpenTelemetry SDK, which is not installed ({error}). Run: pip install 'sandyard[otlp]'"
        ) from error
    _exporter = Exporter(service, __version__, settings.otlp_endpoint.rstrip("/"), headers)
    logging.getLogger().addHandler(_LogHandler(_exporter))


def close() -> None:
    """Send what has not been sent yet, for at most a few seconds. Idempotent."""
    global _exporter
    exporter, _exporter = _exporter, None
    if exporter is not None:
        root = logging.getLogger()
        root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, _LogHandler)]
        exporter.close()


def is_enabled() -> bool:
    return _exporter is not None


def span(name: str, *, parent: str | None = None, **attributes: str | int | None) -> AbstractContextManager[object]:
    """Measure the block as a span. It is marked as failed if the block raises. `parent` is a `traceparent`; by default it is the
    current span."""
    return _NOTHING if _exporter is None else _exporter.span(name, parent, _drop_none(attributes))


def traceparent() -> str | None:
    """Return the current span in the format of W3C Trace Context; None if there is none."""
    return None if _exporter is None else _exporter.traceparent()


def make_headers() -> dict[str, str]:
    """Return the HTTP headers that make the current span the parent of what the receiver does."""
    current = traceparent()
    return {} if current is None else {TRACEPARENT: current}


class TelemetryMiddleware:
    """Measures requests as spans named after their route, as children of the caller's span. Of an event stream, which may last
    for days, only its start is measured."""

    def __init__(self, app: ASGIApp, route: str | None = None) -> None:
        """`route` is that of all requests. By default it is taken from their scope."""
        self.app = app
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _exporter is None or scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        parent = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), None)
        with _exporter.request_span(scope["method"], parent) as request:

            async def reply(message: Message) -> None:
                if message["type"] == "http.response.start":
                    route = self._route or getattr(scope.get("route"), "path", None)
                    request.describe(route, message["status"])
                    if (b"content-type", b"text/event-stream") in _list_types(message):
                        request.end()
                await send(message)

            await self.app(scope, receive, reply)


def _list_types(message: Message) -> Iterator[tuple[bytes, bytes]]:
    return ((name.lower(), value.partition(b";")[0]) for name, value in message["headers"])


async def send_metrics_regularly(read: Callable[[], Awaitable[str]], interval_s: float) -> None:
    """Send metrics until cancelled. `read` returns them in Prometheus' text format."""
    while _exporter is not None:
        await asyncio.sleep(interval_s)
        try:
            families = list(text_string_to_metric_families(await read()))
            await asyncio.to_thread(_exporter.send_metrics, families)
        except Exception as error:
            log.warning("metrics_not_sent", reason=str(error))


class _LogHandler(logging.Handler):
    """Sends log records. Those of the exporter itself are skipped: a failed export would cause the next one."""

    def __init__(self, exporter: Exporter) -> None:
        super().__init__()
        self._exporter = exporter

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(("opentelemetry", "urllib3")):
            fields: dict[str, Any] = getattr(record, FIELDS, {})
            self._exporter.send_log(record, {name: str(value) for name, value in fields.items()})


def _drop_none(attributes: dict[str, str | int | None]) -> dict[str, str | int]:
    return {name: value for name, value in attributes.items() if value is not None}


def _parse_headers(text: str) -> dict[str, str]:
    """Parse `name=value,name=value`. Raises ValueError."""
    return dict(_split_pairs(text))


def _split_pairs(text: str) -> Iterator[tuple[str, str]]:
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, found, value = pair.partition("=")
        if not found or not name.strip():
            raise ValueError("must be name=value pairs, separated by commas")
        yield name.strip(), value.strip()
