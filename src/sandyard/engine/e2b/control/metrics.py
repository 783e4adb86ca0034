"""Metrics of the engine in Prometheus' text format. Needs an API key, like everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sandyard import __version__
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.control.host_metrics import collect_host_metrics
from sandyard.engine.layers.service import LayerService
from sandyard.engine.sandboxes.model import State
from sandyard.kit.connections import CONNECTIONS

_PREFIX = "sandyard_engine"


def make_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(await read(context), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router


async def read(context: Context) -> str:
    """Return the current metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StateCollector(context))
    counted = generate_latest(context.sandboxes.components.counters.registry)
    return (generate_latest(registry) + counted).decode()


class _StateCollector(Collector):
    """Reads the metrics that follow from the engine's present state."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        components = self._context.sandboxes.components
        info = _make_gauge("info", "Version of the engine and its driver.", ("version", "driver"))
        info.add_metric((__version__, components.calls.driver.name), 1)
        yield info
        yield _make_gauge("sandboxes_running", "Running sandboxes.", value=components.registry.running_count)
        yield from self._collect_sandboxes()
        yield from self._collect_room()
        builds = _make_gauge("builds", "Builds of templates that have not ended.", ("status",))
        for status, count in self._context.builds.count_unfinished().items():
            builds.add_metric((status.value,), count)
        yield builds
        yield _make_gauge("connections", "Open connections of clients.", value=len(CONNECTIONS))
        yield from collect_host_metrics(_PREFIX, self._context.hosts.list())
        if self._context.layers is not None:
            yield from _collect_layer_store(self._context.layers)

    def _collect_sandboxes(self) -> Iterator[Metric]:
        components = self._context.sandboxes.components
        states = Counter(entry.record.state for entry in components.registry)
        sandboxes = _make_gauge("sandboxes", "Sandboxes by state.", ("state",))
        for state in State:
            sandboxes.add_metric((state.value,), states[state])
        sandboxes.add_metric(("creating",), components.registry.creating_count)
        sandboxes.add_metric(("removing",), len(components.remover.removing))
        yield sandboxes
        labels = ("template", "isolation", "containers")
        ready = _make_gauge("pool_ready", "Sandboxes that were created in advance.", labels)
        target = _make_gauge("pool_target", "Sandboxes that the pool should have.", labels)
        for pool in components.pool.list_status():
            values = (pool.template, pool.isolation.value, str(pool.containers).lower())
            ready.add_metric(values, pool.ready)
            target.add_metric(values, pool.target)
        yield from (ready, target)

    def _collect_room(self) -> Iterator[Metric]:
        components = self._context.sandboxes.components
        room = components.calls.driver.get_room()
        shortage = components.capacity.find_shortage()
        yield _make_gauge("can_create", "Whether there is room for another sandbox.", value=int(shortage is None))
        if room.memory_available is not None:
            yield _make_gauge("memory_available_bytes", "Memory left for sandboxes.", value=room.memory_available)
        if room.disk_free is not None:
            yield _make_gauge("disk_free_bytes", "Disk space left for sandboxes.", value=room.disk_free)


def _collect_layer_store(layers: LayerService) -> Iterator[Metric]:
    status = layers.status
    for name, text, value in (
        ("layer_store_up", "Whether the layer store can be used.", int(status.problem is None)),
        ("layer_store_snapshots_published", "Durable snapshots of this engine.", status.published),
        ("layer_store_snapshots_pending", "Snapshots that wait to be published.", status.pending),
        ("layer_store_snapshots_failed", "Pending snapshots whose last attempt failed.", len(status.failures)),
    ):
        yield _make_gauge(name, text, value=value)
    for name, text, value in (
        ("layer_store_failures", "Failed attempts to publish a snapshot.", status.failure_count),
        ("layer_store_published_bytes", "Bytes of blobs that were stored.", status.published_bytes),
    ):
        yield CounterMetricFamily(f"{_PREFIX}_{name}", text, value)


def _make_gauge(
    name: str, text: str, labels: tuple[str, ...] | None = None, value: float | None = None
) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value, labels)
