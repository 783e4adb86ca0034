"""Telemetry is off by default, and what is sent arrives in the form that OpenTelemetry expects."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Message, Receive, Scope, Send

from sandyard.kit import telemetry
from sandyard.kit.errors import InvalidInputError, UnsupportedError
from sandyard.kit.logging import get_logger
from sandyard.kit.secret import Secret
from sandyard.kit.telemetry import TelemetryMiddleware, TelemetrySettings
from tests.harness.collector import Collector, collecting

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        telemetry.configure("tests", TelemetrySettings.load({}, otlp_endpoint=f"{collector.url}/"))
        yield collector
        telemetry.close()


async def _respond(scope: Scope, receive: Receive, send: Send) -> None:
    with telemetry.span("driver.create", sandbox="s1", pool=None):
        await send({"type": "http.response.start", "status": scope["status"], "headers": scope["answer"]})


async def _request(route: str | None = None, status: int = 200, answer: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    async def receive() -> Message:
        raise AssertionError("the application reads nothing")

    async def send(message: Message) -> None:
        pass

    headers = [(b"traceparent", PARENT.encode())]
    scope = {"type": "http", "method": "POST", "headers": headers, "status": status, "answer": answer}
    await TelemetryMiddleware(_respond, route)(scope, receive, send)


async def test_nothing_is_sent_by_default() -> None:
    telemetry.configure("tests", TelemetrySettings.load({}))
    assert not telemetry.is_enabled()
    with telemetry.span("round", attempt="a1"):
        assert telemetry.traceparent() is None
        assert telemetry.make_headers() == {}
    await _request()


async def test_spans_of_a_request_are_children_of_the_caller(collector: Collector) -> None:
    await _request("/v2/sandboxes")
    await _request("/broken", 500)
    with telemetry.span("round", parent=PARENT, attempt="a1"):
        assert telemetry.make_headers()["traceparent"].startswith(f"00-{TRACE}-")
    with pytest.raises(ValueError, match="no"), telemetry.span("failing"):
        raise ValueError("no")
    telemetry.close()
    spans = {span.name: span for _, span in collector.spans}
    assert set(spans) == {"POST /v2/sandboxes", "POST /broken", "driver.create", "round", "failing"}
    assert spans["POST /v2/sandboxes"].trace_id.hex() == spans["round"].trace_id.hex() == TRACE
    assert collector.list_ancestors(spans["driver.create"])[0] == "driver.create"
    assert [attribute.key for attribute in spans["driver.create"].attributes] == ["sandyard.sandbox"]
    assert spans["POST /broken"].status.code == spans["failing"].status.code == 2
    assert {service for service, _ in collector.spans} == {"tests"}


async def test_messages_of_errors_are_not_sent(collector: Collector) -> None:
    """They may contain commands, output and what users have written."""
    for open_span in (lambda: telemetry.span("step"), lambda: telemetry._exporter.request_span("GET", None)):  # type: ignore[union-attr]
        with pytest.raises(ValueError, match="planted"), open_span():
            raise ValueError("planted secret")
    telemetry.close()
    assert len(collector.spans) == 2
    for _, span in collector.spans:
        assert "planted" not in str(span)
        assert span.status.code == 2
        assert [attribute.value.string_value for attribute in span.attributes] == ["ValueError"]


async def test_no_client_can_keep_its_requests_out_of_the_traces(collector: Collector) -> None:
    with telemetry.span("round", parent=f"00-{TRACE}-b7ad6b7169203331-00"):
        pass
    telemetry.close()
    assert [span.name for _, span in collector.spans] == ["round"]


async def test_metrics_keep_their_kinds_and_histograms_their_counts(collector: Collector) -> None:
    registry = CollectorRegistry()
    Counter("requests", "Requests.", ("route",), registry=registry).labels("/a").inc(3)
    Gauge("open", "Open.", registry=registry).set(2)
    histogram = Histogram("seconds", "Time.", buckets=(1, 2), registry=registry)
    for value in (0.5, 1.5, 1.6, 9):
        histogram.observe(value)

    async def read() -> str:
        return generate_latest(registry).decode()

    async with asyncio.timeout(30):
        sending = asyncio.create_task(telemetry.send_metrics_regularly(read, 0.001))
        while not collector.metrics:
            await asyncio.sleep(0.01)
        sending.cancel()
    metrics = {metric.name: metric for _, metric in collector.metrics}
    assert metrics["requests"].sum.is_monotonic
    assert metrics["requests"].sum.data_points[0].as_double == 3
    assert metrics["open"].gauge.data_points[0].as_double == 2
    (point,) = metrics["seconds"].histogram.data_points
    assert (list(point.bucket_counts), list(point.explicit_bounds), point.count) == ([1, 2, 1], [1, 2], 4)


def test_log_events_arrive_with_their_fields_and_without_secrets(collector: Collector) -> None:
    logging.getLogger("sandyard.test").setLevel(logging.INFO)
    get_logger("sandyard.test").info("key_stored", sandbox="s1", key=Secret("hunter2"))
    telemetry.close()
    (record,) = [log for _, log in collector.logs if log.body.string_value == "key_stored"]
    attributes = {attribute.key: attribute.value.string_value for attribute in record.attributes}
    assert attributes["sandbox"] == "s1"
    assert "hunter2" not in str(record)


def test_missing_packages_and_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sandyard.kit.telemetry_sdk", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'sandyard\[otlp\]'"):
        telemetry.configure("tests", TelemetrySettings.load({}, otlp_endpoint="http://127.0.0.1:4318"))
    with pytest.raises(InvalidInputError, match="otlp_endpoint"):
        TelemetrySettings.load({"SANDYARD_OTLP_ENDPOINT": "collector:4318"})
    with pytest.raises(InvalidInputError, match="otlp_headers"):
        TelemetrySettings.load({"SANDYARD_OTLP_HEADERS": "token"})
