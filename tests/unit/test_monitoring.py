"""The alert rules and the dashboard use only metrics that the platform and the engine have."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.core import Metric

from sandyard.engine.drivers.cluster.model import HostRecord, HostRoom, HostState, HostStatus
from sandyard.engine.e2b.control.host_metrics import collect_host_metrics
from sandyard.engine.e2b.control.metrics import _PREFIX, _collect_layer_store, _StateCollector
from sandyard.engine.hosts.administration import HostView
from sandyard.engine.layers.service import Status
from sandyard.platform.api.metrics import Metrics
from tests.harness.processes import ROOT
from tests.unit.engine.sandboxes.harness import SandboxesHarness

FOLDER = ROOT / "deploy" / "monitoring"
_NAME = re.compile(r"\bsandyard_[a-z0-9_]+\b")
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}


def list_dashboard_expressions() -> Iterator[str]:
    for panel in json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def name_series(families: Iterable[Metric]) -> set[str]:
    return {f"{family.name}{suffix}" for family in families for suffix in SUFFIXES[family.type]}


@pytest.fixture
async def exported(tmp_path: Path) -> AsyncIterator[set[str]]:
    """The names of all series of a platform, and of an engine with a host and a layer store."""
    harness = SandboxesHarness(tmp_path)
    await harness.start()
    harness.available_memory = 1 << 30
    room = HostRoom(1, 1, 1, 1, 1, 1.0, None)
    status = HostStatus(HostRecord("h", "h", "h", 1), HostState.READY, 0.0, None, "1", room, seen_at=0.0)
    engine = SimpleNamespace(
        sandboxes=harness.service,
        builds=SimpleNamespace(count_unfinished=dict),
        hosts=SimpleNamespace(list=list),
        layers=None,
    )
    layers = SimpleNamespace(status=Status("/store", None, 0, {}, 0, 0, 0, None))
    yield {
        *name_series(Metrics().registry.collect()),
        *name_series(harness.service.components.counters.registry.collect()),
        *name_series(_StateCollector(engine).collect()),  # type: ignore[arg-type]
        *name_series(_collect_layer_store(layers)),  # type: ignore[arg-type]
        *name_series(collect_host_metrics(_PREFIX, [HostView(status)])),
    }
    await harness.stop()


async def test_every_metric_that_is_used_exists(exported: set[str]) -> None:
    used = {
        name
        for text in ((FOLDER / "sandyard.rules.yml").read_text(), *list_dashboard_expressions())
        for name in _NAME.findall(text)
    }
    assert len(used) > 30
    assert not used - exported


async def test_every_metric_in_the_guide_exists(exported: set[str]) -> None:
    """In a cell with several, the first is complete and the others are its end."""
    table = re.findall(r"^\| (`sandyard_.*?) \|", (ROOT / "docs" / "operating.md").read_text(), re.MULTILINE)
    assert len(table) > 5
    for cell in table:
        for name in re.findall(r"`([a-z_]+)`", cell):
            assert any(re.search(f"{name}(_bucket)?$", series) for series in exported), name
