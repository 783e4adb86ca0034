"""Metrics of each host, labelled with its id and name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from sandyard.engine.drivers.cluster.model import LOCAL_HOST_ID, HostRoom, HostState, HostStatus
from sandyard.engine.hosts.administration import HostView

_LABELS = ("host", "name")


def collect_host_metrics(prefix: str, hosts: Sequence[HostView]) -> Iterator[Metric]:
    """Yield the metrics. What is not known about a host is left out."""
    now = time.time()

    def read_room(read: Callable[[HostRoom], float | None]) -> Callable[[HostStatus], float | None]:
        return lambda status: None if status.room is None else read(status.room)

    def read_age(status: HostStatus) -> float | None:
        return None if status.seen_at is None else round(max(0.0, now - status.seen_at), 3)

    readings: tuple[tuple[str, str, Callable[[HostStatus], float | None]], ...] = (
        ("up", "Whether the engine reaches the host.", lambda status: status.state is HostState.READY),
        ("draining", "Whether the host gets no new sandboxes.", lambda status: status.record.draining),
        ("sandboxes", "Sandboxes on the host, in every condition.", lambda status: status.sandboxes),
        ("memory_bytes", "Memory of the host.", read_room(lambda room: room.memory_total)),
        (
            "memory_available_bytes",
            "Memory of the host available without swapping.",
            read_room(lambda room: room.memory_available),
        ),
        ("disk_bytes", "Size of the disk that stores the host's sandboxes.", read_room(lambda room: room.disk_total)),
        ("disk_free_bytes", "Free space on that disk.", read_room(lambda room: room.disk_free)),
        ("last_seen_seconds", "Seconds since the host last answered.", read_age),
    )
    for name, text, read in readings:
        values = [(host, read(host.status)) for host in hosts]
        yield from _make_gauge(f"{prefix}_host_{name}", text, values)
    checkpoints = [(host, len(host.checkpoint_times)) for host in hosts if host.status.record.id != LOCAL_HOST_ID]
    yield from _make_gauge(
        f"{prefix}_host_checkpoints", "Sandboxes that could be recovered if the host was lost.", checkpoints
    )


def _make_gauge(name: str, text: str, values: Sequence[tuple[HostView, float | None]]) -> Iterator[Metric]:
    """Yield the metric, if any of its values is known."""
    gauge = GaugeMetricFamily(name, text, labels=_LABELS)
    for host, value in values:
        if value is not None:
            gauge.add_metric((host.status.record.id, host.status.record.name), float(value))
    if gauge.samples:
        yield gauge
