"""Prometheus metrics: counters of this process, and counts from the database at the time of the request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from sqlalchemy import func, select
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandyard import __version__
from sandyard.kit.errors import SandyardError
from sandyard.kit.listen import is_loopback
from sandyard.platform.api.auth import Bearer, Cookies, authenticate
from sandyard.platform.api.routers import PREFIX, api_router
from sandyard.platform.db.models import Command, Event, Sandbox
from sandyard.platform.domain.instance.queues import Queue

router = api_router("service", prefix="")
_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_BREAKER_VALUES = {"closed": 0, "half_open": 1, "open": 2}
_FORWARDING_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip")


class Metrics:
    """Metrics of one application. Each has its own registry, so that two applications in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "sandyard_http_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self.latency = Histogram(
            "sandyard_http_request_seconds",
            "Time until the response started.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.sse_clients = Gauge("sandyard_sse_clients", "Open event streams.", registry=self.registry)
        self._sandboxes = Gauge("sandyard_sandboxes", "Sandboxes by status.", ("status",), registry=self.registry)
        self._commands = Gauge("sandyard_commands", "Commands by status.", ("status",), registry=self.registry)
        self._breaker = Gauge(
            "sandyard_engine_breaker", "0 closed (working), 1 half open, 2 open (failing).", registry=self.registry
        )
        self._waiting = Gauge("sandyard_queue_waiting", "Work that waits, by kind.", ("queue",), registry=self.registry)
        self._running = Gauge(
            "sandyard_queue_running", "Work in progress, by kind.", ("queue",), registry=self.registry
        )
        self._oldest = Gauge(
            "sandyard_queue_oldest_seconds",
            "Waiting time of the oldest item. 0 if nothing waits.",
            ("queue",),
            registry=self.registry,
        )
        self._seq = Gauge("sandyard_event_seq", "Number of the newest event.", registry=self.registry)
        self._disk = Gauge("sandyard_disk_bytes", "Size of the platform's disk.", registry=self.registry)
        self._disk_free = Gauge(
            "sandyard_disk_free_bytes", "Free space on the platform's disk.", registry=self.registry
        )
        self._database = Gauge("sandyard_database_up", "Whether the database responds.", registry=self.registry)
        Gauge("sandyard_info", "Version of the platform.", ("version",), registry=self.registry).labels(
            __version__
        ).set(1)

    async def render(self, services: Any) -> bytes:
        self._breaker.set(_BREAKER_VALUES[str(services.engine.breaker.state)])
        disk = await services.status.measure_disk()
        self._disk.set(disk.total)
        self._disk_free.set(disk.free)
        try:
            async with services.database.reading() as session:
                sandboxes = (await session.execute(_count_by(Sandbox.status))).all()
                commands = (await session.execute(_count_by(Command.status))).all()
                seq = await session.scalar(select(func.max(Event.seq)))
                queues = await services.status.read_queues(session)
        except SandyardError:
            self._database.set(0)
        else:
            self._database.set(1)
            _set_gauge(self._sandboxes, sandboxes)
            _set_gauge(self._commands, commands)
            self._seq.set(seq or 0)
            self._set_queues(queues, services.clock.now())
        return generate_latest(self.registry)

    def _set_queues(self, queues: Sequence[Queue], now: float) -> None:
        for queue in queues:
            self._waiting.labels(queue.name).set(queue.waiting)
            self._running.labels(queue.name).set(queue.running)
            since = queue.waiting_since
            self._oldest.labels(queue.name).set(0 if since is None else max(0.0, now - since.timestamp()))


class MetricsMiddleware:
    """Counts requests and measures the time until their responses start."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, streams = time.perf_counter(), 500, False

        async def reply(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                if _is_event_stream(message):
                    streams = True
                    self._metrics.sse_clients.inc()
                self._metrics.latency.labels(*_get_route_labels(scope)).observe(time.perf_counter() - started)
            await send(message)

        try:
            await self._app(scope, receive, reply)
        finally:
            if streams:
                self._metrics.sse_clients.dec()
            self._metrics.requests.labels(*_get_route_labels(scope), str(status)).inc()


@router.get(
    "/metrics",
    name="service.metrics",
    response_class=Response,
    responses={200: {"description": "Prometheus text format.", "content": {"text/plain": {}}}},
)
async def metrics(request: Request, bearer: Bearer, cookies: Cookies) -> Response:
    """Get metrics. No authentication is needed from this machine; others need a token."""
    if not _is_local(request):
        await authenticate(request, bearer, cookies)
    collected: Metrics = request.app.state.metrics
    return Response(await collected.render(request.app.state.services), media_type=CONTENT_TYPE_LATEST)


def _is_local(connection: HTTPConnection) -> bool:
    """Return whether the client is on this machine. A local proxy forwards other clients and sets a forwarding header."""
    peer = connection.client.host if connection.client else ""
    return is_loopback(peer) and not any(name in connection.headers for name in _FORWARDING_HEADERS)


def _is_event_stream(message: Message) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in message["headers"])


def _get_route_labels(scope: Scope) -> tuple[str, str]:
    """Return the route's template, because ids would create one series each. Requests without a route share one series."""
    method = scope["method"] if scope["method"] in _METHODS else "other"
    path: str = getattr(scope.get("route"), "path", None) or "none"
    return method, path.removeprefix(PREFIX)


_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


def _count_by(column: Any) -> Any:
    return select(column, func.count()).group_by(column)


def _set_gauge(gauge: Gauge, rows: Any) -> None:
    gauge.clear()
    for status, count in rows:
        gauge.labels(status).set(count)
