"""An OpenTelemetry collector for tests: an HTTP server that keeps what it gets, parsed with OpenTelemetry's own messages."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.harness.http_server import serve_http


class Collector:
    """The telemetry that has arrived, with the name of the service that sent it."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        self.metrics: list[tuple[str, Metric]] = []
        self.logs: list[tuple[str, LogRecord]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def add(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.headers.append(headers)
        if path == "/v1/traces":
            for traces in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [
                    (_get_service(traces.resource), span) for scope in traces.scope_spans for span in scope.spans
                ]
        elif path == "/v1/metrics":
            for metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                service = _get_service(metrics.resource)
                self.metrics += [(service, metric) for scope in metrics.scope_metrics for metric in scope.metrics]
        elif path == "/v1/logs":
            for logs in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.logs += [
                    (_get_service(logs.resource), log) for scope in logs.scope_logs for log in scope.log_records
                ]

    def list_ancestors(self, span: Span) -> list[str]:
        """Return the names of the span and of what it happened in, from the inside out."""
        by_id = {found.span_id: found for _, found in self.spans if found.trace_id == span.trace_id}
        names = []
        current: Span | None = span
        while current is not None:
            names.append(current.name)
            current = by_id.get(current.parent_span_id)
        return names


def _get_service(resource: object) -> str:
    return next(found.value.string_value for found in resource.attributes if found.key == "service.name")  # type: ignore[attr-defined]


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port of loopback."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.add(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serve_http(Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}"
        yield collector
