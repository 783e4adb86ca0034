"""Every sandbox operation, against a real engine."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import httpx
import pytest
from e2b import AsyncSandbox
from e2b.api.client.models import SandboxDetail

from sandyard.kit.errors import UnsupportedError
from sandyard.kit.ids import make_random_id
from sandyard.kit.secret import Secret
from sandyard.platform.domain.sandboxes.e2b import (
    CircuitState,
    EngineAuthError,
    EngineConfig,
    EngineInvalidError,
    EngineNotConfiguredError,
    EngineSandbox,
    EngineState,
    SandboxEngine,
    SandboxNotFoundError,
    SandboxNotRunningError,
)
from tests.harness.engine import Engine
from tests.integration.platform.domain.sandboxes.e2b.conftest import NewSandbox
from tests.unit.platform.domain.sandboxes.e2b.command_reader import run, until


async def test_create_returns_the_new_sandbox(engine: SandboxEngine, new_sandbox: NewSandbox) -> None:
    created = await new_sandbox(metadata={"session": "ses_1"}, envs={"GREETING": "hello"}, timeout_s=120)
    assert created.state is EngineState.RUNNING
    assert created.template == "base"
    assert created.metadata == {"session": "ses_1"}
    assert 110 <= (created.ends_at - created.started_at).total_seconds() <= 130
    assert await engine.get_info(created.id) == created
    assert (await run(engine, created.id, "echo $GREETING")).stdout == b"hello\n"


async def test_a_sandbox_is_paused_at_its_timeout_and_not_resumed_by_traffic(
    engine: SandboxEngine, new_sandbox: NewSandbox, config: EngineConfig
) -> None:
    created = await new_sandbox(timeout_s=1)
    known = await AsyncSandbox.get_info(created.id, **config.options)
    assert known.lifecycle == {"on_timeout": "pause", "auto_resume": False}
    handle = (await engine.transport.get_handle(created.id)).sandbox

    async def is_paused() -> bool:
        return (await engine.get_info(created.id)).state is EngineState.PAUSED

    await until(is_paused)
    with pytest.raises(Exception, match="not found"):
        await handle.commands.run("true")
    assert await is_paused()


async def test_the_same_idempotency_key_gives_the_same_sandbox(new_sandbox: NewSandbox) -> None:
    key = make_random_id("sbx_")
    first, second = await new_sandbox(idempotency_key=key), await new_sandbox(idempotency_key=key)
    assert first.id == second.id


async def test_an_unknown_template_is_rejected_by_name(new_sandbox: NewSandbox) -> None:
    with pytest.raises(EngineInvalidError, match="no-such-template"):
        await new_sandbox(template="no-such-template")


async def test_list_returns_all_pages_and_both_states(
    engine: SandboxEngine, new_sandbox: NewSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.platform.domain.sandboxes.e2b.engine.PAGE", 1)
    group = make_random_id("group")
    created = [(await new_sandbox(metadata={"group": group, "odd": "a b&c=d/é"})).id for _ in range(3)]
    other = await new_sandbox()
    await engine.pause(created[0])
    found = {item.id: item.state for item in await engine.list({"group": group, "odd": "a b&c=d/é"})}
    assert found == {created[0]: EngineState.PAUSED, created[1]: EngineState.RUNNING, created[2]: EngineState.RUNNING}
    assert {*created, other.id} <= {item.id for item in await engine.list()}


async def test_memory_survives_a_pause_and_only_resume_ends_it(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    await run(engine, sandbox.id, "(while true; do sleep 0.05; date >/tmp/alive; done) & echo $! >/tmp/pid")
    await engine.pause(sandbox.id)
    await engine.pause(sandbox.id)

    for _ in range(2):
        assert (await engine.get_info(sandbox.id)).state is EngineState.PAUSED
        await engine.get_usage(sandbox.id)
        for attempt in (
            run(engine, sandbox.id, "true"),
            engine.files.read(sandbox.id, "/etc/hostname"),
            engine.files.list(sandbox.id, "/"),
            engine.commands.claim(sandbox.id, "cmd_x"),
            engine.terminals.open(sandbox.id, 80, 24),
        ):
            with pytest.raises(SandboxNotRunningError):
                await attempt
    assert (await engine.get_info(sandbox.id)).state is EngineState.PAUSED

    await engine.resume(sandbox.id, 300)
    await engine.resume(sandbox.id, 300)
    assert (await run(engine, sandbox.id, "kill -0 $(cat /tmp/pid) && echo same")).stdout == b"same\n"


async def test_a_restarted_platform_reaches_a_sandbox_without_resuming_it(
    engine: SandboxEngine, sandbox: EngineSandbox, config: EngineConfig
) -> None:
    later = SandboxEngine(config)
    assert (await run(later, sandbox.id, "echo here")).stdout == b"here\n"
    await engine.pause(sandbox.id)
    with pytest.raises(SandboxNotRunningError):
        await run(SandboxEngine(config), sandbox.id, "echo here")
    with pytest.raises(SandboxNotRunningError):
        await run(later, sandbox.id, "echo here")
    assert (await engine.get_info(sandbox.id)).state is EngineState.PAUSED
    await later.close()


async def test_extend_moves_the_end_time(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    await engine.extend(sandbox.id, 3000)
    left = (await engine.get_info(sandbox.id)).ends_at.timestamp() - time.time()
    assert 2900 < left < 3100


async def test_kill_is_final_and_idempotent(engine: SandboxEngine, new_sandbox: NewSandbox) -> None:
    running, paused = (await new_sandbox()).id, (await new_sandbox()).id
    await engine.pause(paused)
    for sandbox_id in (running, paused):
        assert await engine.kill(sandbox_id) is True
        assert await engine.kill(sandbox_id) is False
        for attempt in (
            engine.get_info(sandbox_id),
            engine.pause(sandbox_id),
            engine.resume(sandbox_id, 60),
            engine.extend(sandbox_id, 60),
            engine.create_snapshot(sandbox_id),
            engine.fork(sandbox_id, 60),
            run(engine, sandbox_id, "true"),
            engine.files.stat(sandbox_id, "/"),
        ):
            with pytest.raises(SandboxNotFoundError):
                await attempt


@pytest.mark.parametrize("odd", ["../sandboxes", "a/b", "", "x?y=z", "%2e%2e"])
async def test_a_malformed_id_is_not_found(engine: SandboxEngine, odd: str) -> None:
    with pytest.raises(SandboxNotFoundError):
        await engine.get_info(odd)
    with pytest.raises(SandboxNotFoundError):
        await engine.pause(odd)
    assert await engine.kill(odd) is False


async def test_usage_is_reported(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    async def is_known() -> bool:
        return await engine.get_usage(sandbox.id) is not None

    await until(is_known)
    usage = await engine.get_usage(sandbox.id)
    assert usage is not None
    assert usage.cpu_count >= 1
    assert 0 < usage.memory_bytes < usage.memory_total_bytes
    assert 0 <= usage.disk_bytes < usage.disk_total_bytes
    assert abs(usage.at.timestamp() - time.time()) < 60


async def test_a_snapshot_is_a_template_until_it_is_deleted(
    engine: SandboxEngine, sandbox: EngineSandbox, new_sandbox: NewSandbox
) -> None:
    await run(engine, sandbox.id, "echo kept > ~/note")
    snapshot = await engine.create_snapshot(sandbox.id, name=make_random_id("snap"))
    copy = await new_sandbox(template=snapshot)
    assert (await run(engine, copy.id, "cat ~/note")).stdout == b"kept\n"
    await engine.kill(copy.id)
    await engine.delete_snapshot(snapshot)
    await engine.delete_snapshot(snapshot)
    with pytest.raises(EngineInvalidError):
        await new_sandbox(template=snapshot)


async def test_a_fork_is_an_independent_copy(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    await run(engine, sandbox.id, "echo both > ~/note")
    (copy,) = await engine.fork(sandbox.id, 120)
    assert isinstance(copy, EngineSandbox)
    try:
        assert copy.id != sandbox.id
        assert copy.state is EngineState.RUNNING
        await run(engine, sandbox.id, "echo changed > ~/note")
        assert (await run(engine, copy.id, "cat ~/note")).stdout == b"both\n"
    finally:
        await engine.kill(copy.id)


async def test_a_wrong_api_key_names_the_setting_and_not_the_key(config: EngineConfig) -> None:
    wrong = SandboxEngine(dataclasses.replace(config, api_key=Secret("e2b_" + "0" * 40)))
    with pytest.raises(EngineAuthError, match="E2B_API_KEY") as refused:
        await wrong.list()
    assert "0" * 40 not in str(refused.value)
    assert wrong.breaker.state is CircuitState.CLOSED


async def test_a_missing_api_key_is_reported_with_the_setting(
    engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a key that is not in the settings must not be used
    monkeypatch.setenv("E2B_API_KEY", engine_process.key)
    unconfigured = SandboxEngine(EngineConfig(api_key=None, api_url=engine_process.url))
    for attempt in (
        unconfigured.list(),
        unconfigured.get_info("i1"),
        unconfigured.files.stat("i1", "/"),
        run(unconfigured, "i1", "true"),
    ):
        with pytest.raises(EngineNotConfiguredError, match="Set E2B_API_KEY"):
            await attempt
    assert unconfigured.breaker.state is CircuitState.CLOSED


def test_the_default_address_is_the_e2b_cloud() -> None:
    options = EngineConfig(api_key=Secret("k")).options
    assert (options["api_url"], options["sandbox_url"]) == ("https://api.e2b.app", None)
    assert (
        EngineConfig(api_key=Secret("k"), domain="e2b.example.com").options["api_url"] == "https://api.e2b.example.com"
    )
    assert "'k'" not in repr(EngineConfig(api_key=Secret("k")))


async def test_ports_require_the_traffic_token_of_the_sandbox(
    engine: SandboxEngine, sandbox: EngineSandbox, config: EngineConfig, engine_process: Engine
) -> None:
    route = await engine.ports.get_route(sandbox.id, 8000)
    async with httpx.AsyncClient(base_url=engine_process.url) as client:
        routed = {"E2b-Sandbox-Id": sandbox.id, "E2b-Sandbox-Port": "8000"}
        assert (await client.get("/", headers=routed)).status_code == 403
        assert (await client.get("/", headers=dict(route.headers))).json()["port"] == 8000, (
            "access is granted, to a closed port"
        )
        (copy,) = await engine.fork(sandbox.id, 600)
        assert isinstance(copy, EngineSandbox)
        try:
            other = await engine.ports.get_route(copy.id, 8000)
            assert other.headers["e2b-traffic-access-token"] != route.headers["e2b-traffic-access-token"]
            assert (await client.get("/", headers=dict(other.headers))).json()["port"] == 8000
        finally:
            await engine.kill(copy.id)


async def test_a_restarted_platform_requests_the_traffic_token_once(
    engine: SandboxEngine, sandbox: EngineSandbox, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = await engine.ports.get_route(sandbox.id, 8000)
    connect, calls = AsyncSandbox.connect, []

    async def connect_and_count(*given: object, **options: object) -> object:
        calls.append(given)
        return await connect(*given, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(AsyncSandbox, "connect", connect_and_count)
    ends = (await engine.get_info(sandbox.id)).ends_at
    again = SandboxEngine(config)
    try:
        routes = await asyncio.gather(*(again.ports.get_route(sandbox.id, 8000) for _ in range(20)))
    finally:
        await again.close()
    assert all(route == known for route in routes)
    assert len(calls) == 1
    assert (await engine.get_info(sandbox.id)).ends_at == ends
    await engine.pause(sandbox.id)
    with pytest.raises(SandboxNotRunningError):
        await engine.ports.get_route(sandbox.id, 8000)
    assert (await engine.get_info(sandbox.id)).state is EngineState.PAUSED


async def test_sandboxes_without_a_traffic_token_stay_reachable(
    engine: SandboxEngine, config: EngineConfig, engine_process: Engine
) -> None:
    open_to_all = await AsyncSandbox.create(**config.options)
    try:
        route = await engine.ports.get_route(open_to_all.sandbox_id, 8000)
        assert "e2b-traffic-access-token" not in route.headers
        assert httpx.get(engine_process.url, headers=dict(route.headers)).json()["port"] == 8000
    finally:
        await engine.kill(open_to_all.sandbox_id)


async def test_a_sandbox_without_the_requested_containers_is_removed(
    engine: SandboxEngine, new_sandbox: NewSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await new_sandbox(containers=False)
    assert (sandbox.metadata["sandyard.containers"], sandbox.containers) == ("false", False)
    get_detail = engine.transport.get_detail

    async def get_detail_of_another_endpoint(engine_id: str) -> SandboxDetail:
        detail = await get_detail(engine_id)
        detail.additional_properties.pop("containers")
        return detail

    monkeypatch.setattr(engine.transport, "get_detail", get_detail_of_another_endpoint)
    before = {listed.id for listed in await engine.list()}
    with pytest.raises(UnsupportedError, match=r"[Cc]ontainers"):  # also by an engine that does not support it
        await new_sandbox(containers=True)
    assert {listed.id for listed in await engine.list()} == before


async def test_the_engine_says_whether_it_has_an_isolation_level(engine: SandboxEngine) -> None:
    await engine.check_isolation("base", "namespace", containers=False)
    with pytest.raises(EngineInvalidError, match="not an isolation level"):
        await engine.check_isolation("base", "vm", None)
    with pytest.raises(EngineInvalidError, match="only at the isolation level gvisor"):
        await engine.check_isolation("base", "namespace", containers=True)
    await engine.check_isolation("missing", "gvisor", None)  # unknown templates are not this check's business


async def test_a_sandbox_with_less_isolation_than_requested_is_removed(
    engine: SandboxEngine, new_sandbox: NewSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await new_sandbox(isolation="namespace")
    assert sandbox.metadata["sandyard.isolation"] == sandbox.isolation == "namespace"
    get_detail = engine.transport.get_detail

    async def get_detail_of_another_endpoint(engine_id: str) -> SandboxDetail:
        detail = await get_detail(engine_id)
        del detail.additional_properties["isolation"]
        return detail

    monkeypatch.setattr(engine.transport, "get_detail", get_detail_of_another_endpoint)
    before = {listed.id for listed in await engine.list()}
    with pytest.raises(UnsupportedError, match="does not have the isolation level namespace"):
        await new_sandbox(isolation="namespace")
    assert {listed.id for listed in await engine.list()} == before


async def test_labels_are_refused_if_the_endpoint_has_no_such_hosts(
    engine: SandboxEngine, new_sandbox: NewSandbox
) -> None:
    before = {listed.id for listed in await engine.list()}
    with pytest.raises(EngineInvalidError, match="requires a host with gpu=yes, and this engine has no hosts"):
        await new_sandbox(host_labels={"gpu": "yes"})
    assert {listed.id for listed in await engine.list()} == before
