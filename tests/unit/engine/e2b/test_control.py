"""The control API: authentication, request parsing, and the format of responses and errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
from e2b.api.client.models import ListedSandbox, SandboxDetail, SandboxMetric
from e2b.api.client.models import Sandbox as SandboxModel
from e2b.api.client.models import Template as TemplateModel
from e2b.api.client.models import TemplateWithBuilds as TemplateWithBuildsModel

from sandyard.engine.contract import Limits
from sandyard.engine.e2b.control import api, views
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.control.guard import BODY_LIMIT, BODY_VALUES, Guard
from sandyard.engine.e2b.control.sandboxes import parse_time
from sandyard.engine.hosts.administration import HostAdministration
from sandyard.engine.hosts.directory import Hosts
from sandyard.engine.sandboxes.model import (
    CreateSandbox,
    ForkResult,
    LogEntry,
    LogLevel,
    LogQuery,
    Metric,
    Network,
    OnTimeout,
    Page,
    PauseKind,
    Sandbox,
    SandboxQuery,
    Snapshot,
    SnapshotQuery,
    State,
    Template,
    TemplateStatus,
)
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.store.keys import ApiKeys
from sandyard.engine.volumes.service import Volumes
from sandyard.kit.errors import FullError, NotFoundError
from sandyard.kit.secret import Secret
from tests.unit.engine.e2b.support import TOKEN, sandbox
from tests.unit.engine.volumes.support import FakeVolumeDriver, MountingSandboxes

KEY = "e2b_0123456789"
NOW = 1_700_000_000.25
BASE = Template("tbase", (), aliases=("base", "code-interpreter-v1"))


class RecordingSandboxes:
    """Record all calls and return one sandbox, `iabc`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all calls and restore the sandbox."""
        self.calls: list[tuple[Any, ...]] = []
        self.record = sandbox(started_at=NOW, ends_at=NOW + 300, alias="base", template_id="tbase", metadata={"a": "b"})

    def get(self, sandbox_id: str) -> Sandbox:
        if sandbox_id != "iabc":
            raise NotFoundError(f"Sandbox '{sandbox_id}' not found")
        return self.record

    async def create(self, request: CreateSandbox) -> Sandbox:
        self.calls.append(("create", request))
        if request.template == "full":
            raise FullError("All 3 sandboxes are in use. Kill one, or raise --max-sandboxes.")
        if request.template == "bug":
            raise RuntimeError("a bug with secret details")
        return self.record

    def list(self, query: SandboxQuery) -> Page[Sandbox]:
        self.calls.append(("list", query))
        return Page((self.record,), None if query.cursor else "next")

    def count(self, query: SandboxQuery) -> int:
        self.calls.append(("count", query))
        return 1000

    async def kill(self, sandbox_id: str) -> None:
        self.get(sandbox_id)
        self.calls.append(("kill", sandbox_id))

    async def pause(self, sandbox_id: str, *, memory: bool) -> Sandbox:
        self.calls.append(("pause", sandbox_id, memory))
        return self.record

    async def resume(self, sandbox_id: str, timeout_s: float, *, auto_pause: bool | None, memory: bool) -> Sandbox:
        self.calls.append(("resume", sandbox_id, timeout_s, auto_pause, memory))
        return self.record

    async def connect(self, sandbox_id: str, timeout_s: float, *, memory: bool) -> tuple[Sandbox, bool]:
        self.calls.append(("connect", sandbox_id, timeout_s, memory))
        return self.record, not memory

    async def set_timeout(self, sandbox_id: str, timeout_s: float) -> Sandbox:
        self.calls.append(("set_timeout", sandbox_id, timeout_s))
        return self.record

    async def refresh(self, sandbox_id: str, duration_s: float) -> Sandbox:
        self.calls.append(("refresh", sandbox_id, duration_s))
        return self.record

    async def set_network(self, sandbox_id: str, network: Network) -> Sandbox:
        self.calls.append(("set_network", sandbox_id, network))
        return self.record

    can_report_denied = True

    async def log_denied(self, sandbox_id: str) -> None:
        self.calls.append(("log_denied", sandbox_id))

    async def fork(self, sandbox_id: str, count: int, timeout_s: float, memory: bool | None) -> Sequence[ForkResult]:
        self.calls.append(("fork", sandbox_id, count, timeout_s, memory))
        return [ForkResult(sandbox=self.record), ForkResult(error=FullError("full"))]

    async def snapshot(self, sandbox_id: str, name: str | None) -> Snapshot:
        self.calls.append(("snapshot", sandbox_id, name))
        return Snapshot("s1", sandbox_id, "tbase", (), Limits(), NOW, name=name)

    def list_snapshots(self, query: SnapshotQuery) -> Page[Snapshot]:
        self.calls.append(("list_snapshots", query))
        named = Snapshot("s1", "iabc", "tbase", (), Limits(), NOW, name="mine", tag="v1")
        return Page((named,) if query.name in (None, "mine") else (), None if query.cursor else "next")

    async def delete_snapshot(self, name: str) -> None:
        self.calls.append(("delete_snapshot", name))

    async def list_metrics(self, sandbox_id: str, start: float | None, end: float | None) -> Sequence[Metric]:
        self.calls.append(("list_metrics", sandbox_id, start, end))
        return [Metric(NOW, 2, 12.3456, 1, 2, 3, 4, 5)]

    async def get_latest_metrics(self, sandbox_ids: Sequence[str]) -> dict[str, Metric]:
        return {sandbox_id: Metric(NOW, 2, 0, 1, 2, 3, 4, 5) for sandbox_id in sandbox_ids}

    def list_logs(self, sandbox_id: str, query: LogQuery) -> Sequence[LogEntry]:
        self.calls.append(("list_logs", sandbox_id, query))
        return [LogEntry(NOW, LogLevel.INFO, "The sandbox was created", {"a": "b"})]

    def find_template(self, name: str) -> Template:
        if name in ("base", "tbase", "ns/base:default"):
            return BASE
        raise NotFoundError(f"Template '{name}' not found")


class FakeTemplates:
    def resolve(self, name: str) -> Template | None:
        return BASE if name in ("base", "tbase") else None

    def list(self) -> Sequence[Template]:
        return [BASE, Template("thost", (), aliases=("host",))]


class NoBuilds:
    """A build service without any builds."""

    def find(self, name: str) -> None:
        return None

    def list_templates(self) -> Sequence[Any]:
        return ()


class Client(httpx.AsyncClient):
    recorder: RecordingSandboxes


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Guard, RecordingSandboxes]]:
    database = Database(tmp_path_factory.mktemp("control") / "engine.db")
    database.open()
    recorder = RecordingSandboxes()
    driver = FakeVolumeDriver(tmp_path_factory.mktemp("volumes"))
    volumes = Volumes(database, driver, EngineSettings(), MountingSandboxes())  # type: ignore[arg-type]
    hosts = HostAdministration(database, Hosts(database, None), list)
    context = Context(recorder, FakeTemplates(), Limits(), "localhost:1", None, NoBuilds(), volumes, hosts, None)  # type: ignore[arg-type]
    yield api.build_app(context, ApiKeys(database, [Secret(KEY)])), recorder
    database.close()


@pytest.fixture
async def client(endpoint: tuple[Guard, RecordingSandboxes]) -> AsyncIterator[Client]:
    app, recorder = endpoint
    recorder.reset()
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
    async with Client(transport=transport, base_url="http://engine", headers={"X-API-KEY": KEY}) as http_client:
        http_client.recorder = recorder
        yield http_client


def check_error(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"code", "message"}
    assert body["code"] == status
    assert isinstance(body["message"], str)
    assert body["message"]
    return body["message"]


class TestAuthentication:
    @pytest.mark.parametrize("headers", [{"X-API-KEY": ""}, {"X-API-KEY": "wrong"}, {"Authorization": "Basic x"}])
    async def test_requests_without_a_valid_key_are_rejected(self, client: Client, headers: dict[str, str]) -> None:
        del client.headers["X-API-KEY"]
        for method, path in [("POST", "/v2/sandboxes"), ("GET", "/sandboxes/iabc"), ("GET", "/nothing/here")]:
            check_error(await client.request(method, path, headers=headers, content=b"{not json"), 401)
        assert client.recorder.calls == []

    async def test_the_key_may_be_sent_as_a_bearer_token(self, client: Client) -> None:
        del client.headers["X-API-KEY"]
        response = await client.get("/sandboxes/iabc", headers={"Authorization": f"Bearer {KEY}"})
        assert response.status_code == 200

    async def test_health_needs_no_key(self, client: Client) -> None:
        del client.headers["X-API-KEY"]
        assert (await client.get("/health")).status_code == 204

    async def test_cors_requests_from_any_origin_are_allowed(self, client: Client) -> None:
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
        del client.headers["X-API-KEY"]
        response = await client.options("/v2/sandboxes", headers=preflight)
        assert response.status_code == 204
        assert response.headers["access-control-allow-headers"] == "x-api-key"
        for path in ("/sandboxes", "/nothing"):
            assert (await client.get(path)).headers["access-control-allow-origin"] == "*"


class TestErrors:
    async def test_an_unknown_route_is_not_found(self, client: Client) -> None:
        assert "/nothing/here" in check_error(await client.get("/nothing/here"), 404)

    async def test_a_wrong_method_is_not_allowed(self, client: Client) -> None:
        check_error(await client.put("/v2/sandboxes"), 405)

    async def test_invalid_json_is_rejected(self, client: Client) -> None:
        response = await client.post("/v2/sandboxes", content=b"{no", headers={"Content-Type": "application/json"})
        assert "JSON" in check_error(response, 400)

    @pytest.mark.parametrize("path", ["/v2/sandboxes", "/sandboxes/iabc/timeout", "/sandboxes/iabc/network"])
    async def test_a_missing_body_is_rejected(self, client: Client, path: str) -> None:
        method = "PUT" if path.endswith("network") else "POST"
        check_error(await client.request(method, path), 400)

    async def test_a_body_that_is_too_large_is_rejected(self, client: Client) -> None:
        check_error(await client.post("/v2/sandboxes", content=b" " * (BODY_LIMIT + 1)), 413)
        for path in ("/v2/sandboxes", "/v3/templates"):
            message = check_error(await client.post(path, content=b"[" + b"{}," * BODY_VALUES), 413)
            assert "20,000" in message
            check_error(await client.post(path, content=json.dumps({"templateID": '"'}).encode("utf-16")), 400)

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b" " * 100_000

        headers = {"Content-Type": "application/json"}
        check_error(await client.post("/v2/sandboxes", content=endless(), headers=headers), 413)
        # This body is read completely before the volume's token is checked.
        check_error(await client.patch("/volumecontent/v/path?path=x", content=endless(), headers=headers), 413)

    async def test_a_full_machine_is_reported(self, client: Client) -> None:
        message = check_error(await client.post("/v2/sandboxes", json={"templateID": "full"}), 429)
        assert message.startswith("All 3 sandboxes")

    async def test_an_internal_error_is_reported_without_details(self, client: Client) -> None:
        message = check_error(await client.post("/v2/sandboxes", json={"templateID": "bug"}), 500)
        assert "secret details" not in message


class TestCreate:
    async def post_and_parse(self, client: Client, body: dict[str, Any], path: str = "/v2/sandboxes") -> CreateSandbox:
        response = await client.post(path, json={"templateID": "base", **body})
        assert response.status_code == 201, response.text
        SandboxModel.from_dict(response.json())
        return client.recorder.calls[-1][1]

    async def test_v2_is_always_secure(self, client: Client) -> None:
        parsed = await self.post_and_parse(client, {"secure": False})
        assert (parsed.template, parsed.timeout_s, parsed.secure) == ("base", 300, True)
        assert parsed.on_timeout is OnTimeout.KILL
        assert parsed.network.policy.allow_internet

    async def test_v1_is_secure_on_request(self, client: Client) -> None:
        parsed = await self.post_and_parse(client, {}, "/sandboxes")
        assert (parsed.timeout_s, parsed.secure) == (15, False)
        assert (await self.post_and_parse(client, {"secure": True}, "/sandboxes")).secure

    async def test_everything_is_passed_on(self, client: Client) -> None:
        body = {
            "timeout": 77,
            "metadata": {"k": "v"},
            "envVars": {"A": "1"},
            "autoPause": True,
            "autoResume": {"enabled": True},
            "allow_internet_access": False,
            "mcp": {"server": {}},
            "futureField": {"x": 1},
        }
        parsed = await self.post_and_parse(client, body)
        assert (parsed.timeout_s, parsed.metadata, parsed.env) == (77, {"k": "v"}, {"A": "1"})
        assert (parsed.on_timeout, parsed.auto_resume, parsed.auto_pause_memory) == (OnTimeout.PAUSE, True, True)
        assert parsed.network.policy.allow_internet is False
        assert parsed.extra == {"mcp": {"server": {}}}

    async def test_null_fields_count_as_absent(self, client: Client) -> None:
        names = ("timeout", "metadata", "envVars", "autoResume", "network", "mcp", "volumeMounts", "iam")
        parsed = await self.post_and_parse(client, dict.fromkeys(names))
        assert (parsed.timeout_s, parsed.metadata) == (300, {})

    async def test_private_previews_require_a_secure_sandbox(self, client: Client) -> None:
        assert not (await self.post_and_parse(client, {"network": {"allowPublicTraffic": False}})).public_traffic
        body = {"templateID": "base", "network": {"allowPublicTraffic": False}}
        assert "'secure' flag" in check_error(await client.post("/sandboxes", json=body), 400)

    async def test_the_idempotency_key_is_scoped_to_the_api_key(self, client: Client) -> None:
        headers = {"Idempotency-Key": "abc-1"}
        await client.post("/v2/sandboxes", json={"templateID": "base"}, headers=headers)
        parsed = client.recorder.calls[-1][1]
        assert (parsed.idempotency_key, parsed.owner) == ("abc-1", "fixed-0")
        for bad in ("ABC", "a b", "x" * 256):
            response = await client.post("/v2/sandboxes", json={"templateID": "b"}, headers={"Idempotency-Key": bad})
            check_error(response, 400)

    @pytest.mark.parametrize(
        "body",
        [
            {"templateID": None},
            {"templateID": ""},
            {"timeout": 0},
            {"timeout": -1},
            {"timeout": 1.5},
            {"timeout": "60"},
            {"timeout": 2**31},
            {"metadata": {"a": 1}},
            {"metadata": {"a": "with\0nul"}},
            {"metadata": {"with\0nul": "a"}},
            {"metadata": []},
            {"envVars": {"": "x"}},
            {"envVars": {"A=B": "x"}},
            {"envVars": {"A": "x\0"}},
            {"autoPause": "yes"},
            {"autoPause": True, "autoPauseMemory": False, "autoResume": {"enabled": True}},
            {"volumeMounts": [{"name": "v", "path": "/v"}]},
            {"iam": {"tokens": {"t": {}}}},
            {"network": {"rules": {"10.0.0.1": []}}},
            {"network": {"egressProxy": {"address": "proxy:1080"}}},
            {"network": {"dnsServers": ["dns.example.com"]}},
            {"network": {"httpsPorts": [0]}},
            {"network": {"httpsPorts": [443, 65536]}},
            {"network": {"httpsPorts": [49983]}},
            {"network": {"httpsPorts": ["443"]}},
            {"network": {"maskRequestHost": "-https://abcd"}},
            {"network": {"maskRequestHost": "a b"}},
            {"network": {"maskRequestHost": "a\r\nX-Evil: 1"}},
        ],
        ids=str,
    )
    async def test_invalid_requests_are_rejected(self, client: Client, body: dict[str, Any]) -> None:
        check_error(await client.post("/v2/sandboxes", json={"templateID": "base", **body}), 400)
        assert client.recorder.calls == []


class TestList:
    async def query(self, client: Client, **parameters: Any) -> SandboxQuery:
        response = await client.get("/v2/sandboxes", params=parameters)
        assert response.status_code == 200, response.text
        return next(call[1] for call in client.recorder.calls if call[0] == "list")

    async def test_the_first_page_has_a_cursor_and_the_total(self, client: Client) -> None:
        response = await client.get("/v2/sandboxes")
        assert response.headers["x-next-token"] == "next"
        assert response.headers["x-total-running"] == "1000", "the total covers all pages"
        assert [call[0] for call in client.recorder.calls] == ["list", "count"], "the other pages must not be loaded"
        listed = ListedSandbox.from_dict(response.json()[0])
        assert listed.started_at == datetime.fromtimestamp(NOW, UTC)
        assert listed.metadata == {"a": "b"}
        query = client.recorder.calls[0][1]
        assert (query.states, query.limit, query.oldest_first) == (frozenset(State), 100, False)

    async def test_metadata_filters_may_be_encoded_once_or_twice(self, client: Client) -> None:
        metadata = {"a key=": "1% + ü&", "b": ""}
        by_sdks = urlencode({quote(key): quote(value) for key, value in metadata.items()})
        assert (await self.query(client, metadata=by_sdks)).metadata == metadata
        client.recorder.calls.clear()
        assert (await self.query(client, metadata="user=abc&app=prod")).metadata == {"user": "abc", "app": "prod"}

    async def test_states_may_be_repeated_or_comma_separated(self, client: Client) -> None:
        assert (await self.query(client, state="paused")).states == {State.PAUSED}
        client.recorder.calls.clear()
        assert (await self.query(client, state="paused,running")).states == set(State)
        client.recorder.calls.clear()
        assert (await self.query(client, state=["paused", "running"])).states == set(State)
        response = await client.get("/v2/sandboxes", params={"state": "paused"})
        assert "x-total-running" not in response.headers

    async def test_all_other_filters_are_passed_on(self, client: Client) -> None:
        query = await self.query(
            client, limit=7, nextToken="tok", order="asc", template="base", startedAfter="2026-01-31T10:00:00+01:00"
        )
        assert (query.limit, query.cursor, query.oldest_first, query.template) == (7, "tok", True, "base")
        assert query.started_after == datetime(2026, 1, 31, 9, tzinfo=UTC).timestamp()

    @pytest.mark.parametrize(
        "parameters",
        [
            {"limit": 0},
            {"limit": 101},
            {"limit": "x"},
            {"state": "asleep"},
            {"order": "up"},
            {"metadata": "novalue"},
            {"startedAfter": "soon"},
        ],
        ids=str,
    )
    async def test_invalid_requests_are_rejected(self, client: Client, parameters: dict[str, Any]) -> None:
        check_error(await client.get("/v2/sandboxes", params=parameters), 400)

    async def test_v1_lists_all_running_sandboxes(self, client: Client) -> None:
        response = await client.get("/sandboxes")
        assert len(response.json()) == 2, "all pages are returned at once"
        assert {call[1].states for call in client.recorder.calls} == {frozenset((State.RUNNING,))}


class TestRead:
    async def test_a_sandbox_is_shown_in_detail(self, client: Client) -> None:
        client.recorder.record = replace(
            client.recorder.record,
            network=Network(config={"allowOut": ["1.1.1.1"]}, allow_internet=False),
            pause_kind=PauseKind.FILESYSTEM,
            on_timeout=OnTimeout.PAUSE,
        )
        response = await client.get("/sandboxes/iabc-6532622b")
        detail = SandboxDetail.from_dict(response.json())
        assert detail.envd_access_token == TOKEN
        assert detail.domain == "localhost:1"
        assert detail.allow_internet_access is False
        assert str(detail.pause_mode) == "filesystem"
        assert detail.lifecycle.to_dict() == {"autoResume": False, "onTimeout": "pause"}  # type: ignore[union-attr]
        assert response.json()["network"] == {"allowOut": ["1.1.1.1"]}
        check_error(await client.get("/sandboxes/inone"), 404)

    async def test_metrics_are_returned_and_ranges_checked(self, client: Client) -> None:
        response = await client.get("/sandboxes/iabc/metrics", params={"start": 1, "end": 2})
        sample = SandboxMetric.from_dict(response.json()[0])
        assert (sample.cpu_used_pct, sample.timestamp_unix, sample.mem_cache) == (12.35, 1700000000, 3)
        check_error(await client.get("/sandboxes/iabc/metrics", params={"start": 2, "end": 1}), 400)
        response = await client.get("/sandboxes/metrics", params={"sandbox_ids": "iabc,ixyz-1"})
        assert set(response.json()["sandboxes"]) == {"iabc", "ixyz"}
        many = ",".join(f"i{number}" for number in range(101))
        check_error(await client.get("/sandboxes/metrics", params={"sandbox_ids": many}), 400)
        check_error(await client.get("/sandboxes/metrics"), 400)

    async def test_logs_are_returned_in_both_formats(self, client: Client) -> None:
        response = await client.get("/sandboxes/iabc/logs", params={"start": 1500, "limit": 5})
        entry = response.json()["logEntries"][0]
        line = json.loads(response.json()["logs"][0]["line"])
        assert entry["message"] == line["message"] == "The sandbox was created"
        assert (line["level"], line["logger"]) == (entry["level"], "engine"), "the format the CLI reads"
        assert entry["fields"] == {"a": "b"}
        assert client.recorder.calls[-1][2] == LogQuery(start=1.5, limit=5)
        parameters = {"cursor": 2000, "direction": "backward", "level": "warn", "search": "x"}
        await client.get("/v2/sandboxes/iabc/logs", params=parameters)
        assert client.recorder.calls[-1][2] == LogQuery(2.0, 1000, True, LogLevel.WARN, "x")
        check_error(await client.get("/v2/sandboxes/iabc/logs", params={"direction": "up"}), 400)
        check_error(await client.get("/v2/sandboxes/iabc/logs", params={"level": "loud"}), 400)


class TestChange:
    @pytest.mark.parametrize(
        ("method", "path", "body", "status", "call"),
        [
            ("DELETE", "", None, 204, ("kill", "iabc")),
            ("POST", "/pause", None, 204, ("pause", "iabc", True)),
            ("POST", "/pause", {"memory": False}, 204, ("pause", "iabc", False)),
            ("POST", "/resume", None, 201, ("resume", "iabc", 15, None, True)),
            ("POST", "/resume", {"timeout": 9, "autoPause": True}, 201, ("resume", "iabc", 9, True, True)),
            ("POST", "/connect", {"timeout": 9}, 200, ("connect", "iabc", 9, True)),
            ("POST", "/connect", {"timeout": 9, "memory": False}, 201, ("connect", "iabc", 9, False)),
            ("POST", "/timeout", {"timeout": 0}, 204, ("set_timeout", "iabc", 0)),
            ("POST", "/refreshes", None, 204, ("refresh", "iabc", 15)),
            ("POST", "/refreshes", {"duration": 60}, 204, ("refresh", "iabc", 60)),
            ("POST", "/fork", {"count": 2, "timeout": 9, "memory": True}, 201, ("fork", "iabc", 2, 9, True)),
            ("POST", "/fork", None, 201, ("fork", "iabc", 1, 15, None)),
            ("POST", "/snapshots", {}, 201, ("snapshot", "iabc", None)),
            ("POST", "/snapshots", {"name": "mine:v1", "memory": True}, 201, ("snapshot", "iabc", "mine:v1")),
        ],
    )
    async def test_each_route_calls_its_operation(
        self, client: Client, method: str, path: str, body: Any, status: int, call: tuple[Any, ...]
    ) -> None:
        response = await client.request(method, f"/sandboxes/iabc-6532622b{path}", json=body)
        assert response.status_code == status, response.text
        assert client.recorder.calls[-1] == call
        assert (response.content == b"") is (status == 204)

    async def test_v2_connect_needs_no_body(self, client: Client) -> None:
        assert (await client.post("/v2/sandboxes/iabc/connect")).status_code == 200
        assert client.recorder.calls[-1] == ("connect", "iabc", 300, True)

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/timeout", {"timeout": -1}),
            ("/timeout", {}),
            ("/connect", {}),
            ("/connect", {"timeout": -1}),
            ("/resume", {"timeout": 0}),
            ("/fork", {"count": 0}),
            ("/fork", {"timeout": 0}),
            ("/fork", []),
            ("/refreshes", {"duration": 3601}),
            ("/pause", {"memory": 1}),
        ],
        ids=str,
    )
    async def test_invalid_requests_are_rejected(self, client: Client, path: str, body: Any) -> None:
        check_error(await client.post(f"/sandboxes/iabc{path}", json=body), 400)
        assert client.recorder.calls == []

    async def test_each_fork_has_its_own_outcome(self, client: Client) -> None:
        results = (await client.post("/sandboxes/iabc/fork", json={"count": 2})).json()
        assert results[0]["sandbox"]["sandboxID"] == "iabc"
        assert results[1] == {"error": {"code": 429, "message": "full"}}

    async def test_a_network_update_keeps_the_inbound_settings(self, client: Client) -> None:
        before = {"allowPublicTraffic": False, "maskRequestHost": "m", "allowOut": ["1.1.1.1"]}
        client.recorder.record = replace(client.recorder.record, network=Network(config=before))
        response = await client.put("/sandboxes/iabc/network", json={"denyOut": ["10.0.0.0/8"]})
        assert response.status_code == 204
        network: Network = client.recorder.calls[-1][2]
        assert network.config == {"allowPublicTraffic": False, "maskRequestHost": "m", "denyOut": ["10.0.0.0/8"]}
        assert network.policy.deny_out == ("10.0.0.0/8",)
        assert network.policy.allow_out == ()


class TestTemplates:
    async def test_templates_are_listed_in_pages(self, client: Client) -> None:
        for path in ("/templates", "/default-templates", "/v2/templates"):
            listed = [TemplateModel.from_dict(item) for item in (await client.get(path)).json()]
            assert [item.template_id for item in listed] == ["tbase", "thost"]
            assert listed[0].names == ["base", "code-interpreter-v1"]
        first = await client.get("/v2/templates", params={"limit": 1})
        assert [item["templateID"] for item in first.json()] == ["tbase"]
        parameters = {"limit": "1", "nextToken": first.headers["x-next-token"]}
        last = await client.get("/v2/templates", params=parameters)
        assert [item["templateID"] for item in last.json()] == ["thost"]
        assert "x-next-token" not in last.headers

    async def test_a_template_is_found_by_name(self, client: Client) -> None:
        template = TemplateWithBuildsModel.from_dict((await client.get("/templates/base")).json())
        assert template.builds[0].status == "ready"
        check_error(await client.get("/templates/none"), 404)

    def test_an_unbuilt_template_is_shown_as_waiting(self) -> None:
        unbuilt = Template("tdesk", (), aliases=("desktop",), status=TemplateStatus.WAITING, memory_mb=8192)
        rendered = TemplateModel.from_dict(views.render_template(unbuilt, Limits()))
        assert (rendered.build_status, rendered.build_count, rendered.memory_mb) == ("waiting", 0, 8192)

    @pytest.mark.parametrize("name", ["base", "ns%2Fbase%3Adefault", "ns/base:default"])
    async def test_aliases_are_resolved(self, client: Client, name: str) -> None:
        response = await client.get(f"/templates/aliases/{name}")
        assert response.json() == {"templateID": "tbase", "public": True}
        check_error(await client.get("/templates/aliases/none"), 404)

    async def test_tags_of_templates_and_snapshots_are_listed(self, client: Client) -> None:
        assert [tag["tag"] for tag in (await client.get("/templates/base/tags")).json()] == ["default"]
        assert [tag["tag"] for tag in (await client.get("/templates/mine/tags")).json()] == ["v1"]
        check_error(await client.get("/templates/none/tags"), 404)

    async def test_snapshots_can_be_deleted_and_built_in_templates_cannot(self, client: Client) -> None:
        response = await client.delete("/templates/mine%3Av1")
        assert response.status_code == 204
        assert client.recorder.calls[-1] == ("delete_snapshot", "mine:v1")
        check_error(await client.delete("/templates/base"), 403)

    async def test_snapshots_are_listed_in_pages(self, client: Client) -> None:
        parameters = {"sandboxID": "iabc-1", "limit": "3", "nextToken": "t", "name": ""}
        response = await client.get("/snapshots", params=parameters)
        assert response.json() == [{"snapshotID": "mine:v1", "names": ["mine:v1"], "durable": False}]
        assert client.recorder.calls[-1][1] == SnapshotQuery("iabc", None, 3, "t")
        assert "x-next-token" not in response.headers
        assert (await client.get("/snapshots")).headers["x-next-token"] == "next"
        check_error(await client.get("/snapshots", params={"limit": 0}), 400)


@pytest.mark.parametrize(
    ("requested", "alias", "expected"),
    [
        ("base", "base", "base"),
        ("code-interpreter-v1:default", "base", "code-interpreter-v1"),
        ("t", "base", "base"),
        (None, "base", "base"),
        ("s1:default", None, None),
    ],
)
def test_a_sandbox_shows_the_template_name_it_was_created_with(
    requested: str | None, alias: str | None, expected: str | None
) -> None:
    assert views.render_listed(sandbox(name=requested, alias=alias)).get("alias") == expected


@pytest.mark.parametrize("moment", [1763179539.5681947, 1763179539.5681949, 0.0, NOW, 1763179539.9999998])
def test_a_formatted_time_is_never_later_than_the_original(moment: float) -> None:
    parsed_time = parse_time("x", views.format_time(moment))
    assert parsed_time is not None
    assert parsed_time <= moment < parsed_time + 0.00001


def test_views_contain_no_secrets_except_the_tokens() -> None:
    record = sandbox(env={"SECRET": "hidden"}, started_at=NOW, ends_at=NOW)
    for view in (views.render_listed(record), views.render_detail(record, None), views.render_created(record, None)):
        assert "hidden" not in json.dumps(view)
