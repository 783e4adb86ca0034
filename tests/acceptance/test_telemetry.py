"""Telemetry of a real platform and engine, received by a collector."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.project_client import create_forge_project
from tests.acceptance.task_client import create_task
from tests.forge import GitHub, forge
from tests.harness.collector import Collector, collecting
from tests.harness.engine import Engine, serving
from tests.harness.platform import Platform, running, until

pytestmark = pytest.mark.slow
TOKEN = "telemetry-token-8d3f"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def settings(collector: Collector) -> dict[str, str]:
    return {"OTLP_ENDPOINT": collector.url, "OTLP_HEADERS": f"x-token={TOKEN}", "OTLP_METRICS_INTERVAL_S": "1"}


@pytest.fixture(scope="module")
def engine(settings: dict[str, str]) -> Iterator[Engine]:
    with serving(POOL_SIZE="0", **settings) as engine:
        yield engine


@pytest.fixture(scope="module")
def platform(engine: Engine, settings: dict[str, str]) -> Iterator[Platform]:
    with running(engine, None, FORGE_POLL_S="3600", **settings) as platform:
        yield platform


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


def test_a_task_is_traced_from_the_click_to_the_sandbox(
    collector: Collector, platform: Platform, github: GitHub
) -> None:
    project = create_forge_project(platform, github)
    secret = "a secret of the user's prompt"
    task = create_task(project, f"Write it\n{secret}\nappend a.txt: one")
    task.wait_until_settled("in_review")

    def find_span(service: str, name: str, *outer: str) -> bool:
        """Return whether there is a span inside all of the others, in this order, from the outside in."""
        for sender, span in tuple(collector.spans):
            names = iter(collector.list_ancestors(span))
            if sender == service and next(names) == name and all(wanted in names for wanted in reversed(outer)):
                return True
        return False

    create = ("round", "step.provision", "engine.create", "POST /v2/sandboxes")
    until(lambda: find_span("sandyard-engine", "driver.create", *create))
    until(lambda: find_span("sandyard-platform", "sandbox.start_command", "round", "step.agent"))
    rounds = [collector.list_ancestors(span) for _, span in collector.spans if span.name == "round"]
    assert all(names[-1].startswith("POST /api/v1/tasks") for names in rounds), (
        "a round belongs to the request that started it"
    )
    spans = "".join(str(span) for _, span in collector.spans)
    assert secret not in spans
    assert github.url not in spans
    assert {headers["x-token"] for headers in collector.headers} == {TOKEN}


def test_metrics_and_logs_arrive(collector: Collector, platform: Platform) -> None:
    def get_names(service: str) -> set[str]:
        return {metric.name for sender, metric in tuple(collector.metrics) if sender == service}

    until(lambda: "sandyard_engine_sandboxes_running" in get_names("sandyard-engine"))
    until(lambda: {"sandyard_http_requests", "sandyard_http_request_seconds"} <= get_names("sandyard-platform"))
    until(
        lambda: any(
            sender == "sandyard-engine" and log.body.string_value == "engine_started" for sender, log in collector.logs
        )
    )
    for _, metric in tuple(collector.metrics):
        if metric.name == "sandyard_http_request_seconds":
            for point in metric.histogram.data_points:
                assert sum(point.bucket_counts) == point.count
                assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert TOKEN not in "".join(str(log) for _, log in collector.logs)
