"""Metrics of the engine in Prometheus' text format. Needs an API key, like everything else."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Response

from sandyard.engine.e2b.control.context import Context

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def make_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response("".join(f"{line}\n" for line in _render(context)), media_type=_CONTENT_TYPE)

    return router


def _render(context: Context) -> Iterator[str]:
    registry = context.sandboxes.components.registry
    yield from _render_one("gauge", "sandboxes_running", "Running sandboxes.", registry.running_count)
    if context.layers is None:
        return
    status = context.layers.status
    for kind, name, text, value in (
        ("gauge", "layer_store_up", "Whether the layer store can be used.", int(status.problem is None)),
        ("gauge", "layer_store_snapshots_published", "Durable snapshots of this engine.", status.published),
        ("gauge", "layer_store_snapshots_pending", "Snapshots that wait to be published.", status.pending),
        ("gauge", "layer_store_snapshots_failed", "Pending snapshots whose last attempt failed.", len(status.failures)),
        ("counter", "layer_store_failures_total", "Failed attempts to publish a snapshot.", status.failure_count),
        ("counter", "layer_store_published_bytes_total", "Bytes of blobs that were stored.", status.published_bytes),
    ):
        yield from _render_one(kind, name, text, value)


def _render_one(kind: str, name: str, text: str, value: int) -> Iterator[str]:
    yield f"# HELP sandyard_engine_{name} {text}"
    yield f"# TYPE sandyard_engine_{name} {kind}"
    yield f"sandyard_engine_{name} {value}"
