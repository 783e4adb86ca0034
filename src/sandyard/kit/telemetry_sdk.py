"""The part of `telemetry` that needs the OpenTelemetry SDK (`sandyard[otlp]`). The SDK's interface for logs is stable, although its
packages are still named `_logs`."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client.metrics_core import Metric as Family

TIMEOUT_S = 5
_SEVERITIES = {
    logging.DEBUG: SeverityNumber.DEBUG,
    logging.INFO: SeverityNumber.INFO,
    logging.WARNING: SeverityNumber.WARN,
    logging.ERROR: SeverityNumber.ERROR,
}
_PROPAGATOR = TraceContextTextMapPropagator()


class Exporter:
    """Sends spans and logs in batches, from threads of its own, and metrics when asked. An unreachable collector costs nothing but
    what it would have got."""

    def __init__(self, service: str, version: str, endpoint: str, headers: Mapping[str, str]) -> None:
        self._resource = Resource.create(
            {"service.name": service, "service.version": version, "host.name": socket.gethostname()}
        )
        self._scope = InstrumentationScope("sandyard", version)
        self._started_at = time.time_ns()
        options: dict[str, Any] = {"headers": dict(headers), "timeout": TIMEOUT_S}
        # ignore the sampling flag of a client's `traceparent`: clients must not hide their requests from the traces
        self._spans = TracerProvider(resource=self._resource, shutdown_on_exit=False, sampler=ALWAYS_ON)
        self._spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces", **options)))
        self._logs = LoggerProvider(resource=self._resource, shutdown_on_exit=False)
        self._logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(f"{endpoint}/v1/logs", **options)))
        self._metrics = OTLPMetricExporter(f"{endpoint}/v1/metrics", **options)
        self._tracer = self._spans.get_tracer("sandyard", version)
        self._logger = self._logs.get_logger("sandyard", version)

    def close(self) -> None:
        for part in (self._spans, self._logs, self._metrics):
            part.shutdown()

    @contextlib.contextmanager
    def span(self, name: str, parent: str | None, attributes: Mapping[str, str | int]) -> Iterator[trace.Span]:
        prefixed = {f"sandyard.{key}": value for key, value in attributes.items()}
        with self._open_span(name, parent, attributes=prefixed) as span:
            yield span

    @contextlib.contextmanager
    def request_span(self, method: str, parent: str | None) -> Iterator[RequestSpan]:
        request: RequestSpan | None = None
        try:
            with self._open_span(method, parent, kind=SpanKind.SERVER, end_on_exit=False) as span:
                request = RequestSpan(span, method)
                yield request
        finally:
            if request is not None:
                request.end()

    @contextlib.contextmanager
    def _open_span(self, name: str, parent: str | None, **options: Any) -> Iterator[trace.Span]:
        """Open a span. Of an error it gets only the type: messages may contain commands, output and what users have written."""
        options |= {"record_exception": False, "set_status_on_exception": False}
        with self._tracer.start_as_current_span(name, context=_read_parent(parent), **options) as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(StatusCode.ERROR)
                raise

    def traceparent(self) -> str | None:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier.get("traceparent")

    def send_log(self, record: logging.LogRecord, fields: Mapping[str, str]) -> None:
        self._logger.emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                observed_timestamp=int(record.created * 1e9),
                severity_text=record.levelname,
                severity_number=_SEVERITIES.get(record.levelno, SeverityNumber.INFO),
                body=record.getMessage(),
                attributes={"logger": record.name, **fields},
                exception=record.exc_info[1] if record.exc_info else None,
            )
        )

    def send_metrics(self, families: Iterable[Family]) -> None:
        """Send metrics. Blocks. Raises OSError if the collector does not accept them."""
        now = time.time_ns()
        metrics = [metric for family in families if (metric := self._convert(family, now)) is not None]
        scope = ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        data = MetricsData([ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")])
        result = self._metrics.export(data, timeout_millis=TIMEOUT_S * 1000)
        if result.name != "SUCCESS":
            raise OSError("the collector did not accept them")

    def _convert(self, family: Family, now: int) -> Metric | None:
        data: Gauge | Sum | Histogram
        if family.type == "histogram":
            data = Histogram(self._make_histogram_points(family, now), AggregationTemporality.CUMULATIVE)
        elif family.type == "counter":
            points = [self._make_point(sample, now) for sample in family.samples if sample.name.endswith("_total")]
            data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        else:
            data = Gauge([self._make_point(sample, now) for sample in family.samples])
        return Metric(family.name, family.documentation, "", data) if data.data_points else None

    def _make_point(self, sample: Any, now: int) -> NumberDataPoint:
        return NumberDataPoint(dict(sample.labels), self._started_at, now, sample.value)

    def _make_histogram_points(self, family: Family, now: int) -> list[HistogramDataPoint]:
        """Prometheus counts all values up to a bound, OpenTelemetry those between two bounds."""
        buckets: dict[frozenset[tuple[str, str]], dict[float, int]] = {}
        sums: dict[frozenset[tuple[str, str]], float] = {}
        for sample in family.samples:
            labels = frozenset((name, value) for name, value in sample.labels.items() if name != "le")
            if sample.name.endswith("_bucket"):
                buckets.setdefault(labels, {})[float(sample.labels["le"])] = int(sample.value)
            elif sample.name.endswith("_sum"):
                sums[labels] = sample.value
        points = []
        for labels, counts in buckets.items():
            bounds = sorted(counts)
            totals = [counts[bound] for bound in bounds]
            between = [total - before for before, total in zip([0, *totals], totals, strict=False)]
            finite = [bound for bound in bounds if bound != float("inf")]
            points.append(
                HistogramDataPoint(
                    attributes=dict(labels),
                    start_time_unix_nano=self._started_at,
                    time_unix_nano=now,
                    count=totals[-1],
                    sum=sums.get(labels, 0.0),
                    bucket_counts=between,
                    explicit_bounds=finite,
                    min=0.0,
                    max=0.0,
                )
            )
        return points


class RequestSpan:
    """The span of a request, which gets its name when the route is known."""

    def __init__(self, span: trace.Span, method: str) -> None:
        self._span = span
        self._method = method
        self._has_ended = False

    def describe(self, route: str | None, status: int) -> None:
        if route is not None:
            self._span.update_name(f"{self._method} {route}")
            self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.request.method", self._method)
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        """End the span. Idempotent."""
        if not self._has_ended:
            self._has_ended = True
            self._span.end()


def _read_parent(parent: str | None) -> Any:
    return None if parent is None else _PROPAGATOR.extract({"traceparent": parent})
