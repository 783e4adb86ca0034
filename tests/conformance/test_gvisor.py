"""What only gVisor sandboxes have or lack."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

import pytest

from sandyard.engine.contract import Condition, Isolation, Limits
from sandyard.kit.errors import NotFoundError, SandyardError
from tests.conformance import tiny
from tests.conformance.harness import DriverHarness


@pytest.fixture(scope="session")
def kind() -> str:
    return "gvisor"


async def test_the_kernel_is_not_the_hosts(harness: DriverHarness) -> None:
    _, agent = await harness.create(limits=Limits(memory_mb=300, cpu_count=1))
    assert (await agent.run("cat /proc/version")).out != Path("/proc/version").read_text()
    assert (await agent.run("nproc")).out == "1\n"
    assert (await agent.run("cat /proc/meminfo")).out.split()[:3] == ["MemTotal:", str(300 << 10), "kB"]


async def test_a_sandbox_survives_everything_that_an_engine_does_with_it(harness: DriverHarness) -> None:
    """The most important part of the other tests, which run with gVisor in `make test-all` only."""
    driver = harness.driver
    handle, agent = await harness.create()
    pid = await agent.start("trap 'echo alive > sign' USR1; while :; do sleep 0.01; done")
    await driver.freeze(handle)
    assert await driver.condition(handle) is Condition.FROZEN
    await harness.open([handle])
    driver = harness.driver
    suspended = await driver.suspend(handle)
    assert await driver.condition(suspended) is Condition.SUSPENDED
    handle = await driver.restore(suspended)
    agent = harness.agent(handle)
    assert (await agent.run(f"kill -USR1 {pid}; sleep 0.1; cat sign")).out == "alive\n"
    size = 4 << 20
    assert len((await agent.run(f"head -c {size} /dev/zero | tr '\\0' x")).out) == size
    handle = await driver.boot(await driver.stop(handle), harness.spec(handle.id))
    assert await harness.agent(handle).read("/sign") == "alive\n"
    await driver.kill(handle)
    assert harness.traces(handle.id) == []


async def test_a_restore_that_fails_before_gvisor_starts_keeps_the_memory(
    harness: DriverHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, agent = await harness.create()
    pid = await agent.start("exec sleep 1000")
    await harness.driver.freeze(handle)
    suspended = await harness.driver.suspend(handle)

    def fail(layer: str) -> str:
        raise NotFoundError(f"The layer {layer} does not exist.")

    with monkeypatch.context() as patch:
        patch.setattr("sandyard.engine.drivers.gvisor.runtime._resolve_layer", fail)
        with pytest.raises(NotFoundError):
            await harness.driver.restore(suspended)
    assert await harness.driver.condition(suspended) is Condition.SUSPENDED
    restored = await harness.driver.restore(suspended)
    assert (await harness.agent(restored).run(f"kill -0 {pid}")).code == 0


async def test_a_sandbox_that_exceeds_its_memory_limit_ends_and_says_why(harness: DriverHarness) -> None:
    handle, agent = await harness.create(limits=Limits(memory_mb=128))
    await agent.start(f"{tiny.PYTHON} -I -S -c 'x = bytearray(400 << 20)'")
    async with asyncio.timeout(30):
        assert "memory" in await harness.driver.wait_for_exit(handle)
    assert await harness.driver.condition(handle) is Condition.STOPPED


async def test_every_process_of_the_host_and_of_others_is_invisible(harness: DriverHarness) -> None:
    _, agent = await harness.create()
    _, other = await harness.create()
    await other.start("exec sleep 4321")
    assert "4321" not in (await agent.run("cat /proc/[0-9]*/cmdline")).out


async def test_sandboxes_of_both_levels_run_beside_each_other(harness: DriverHarness) -> None:
    strong, agent = await harness.create()
    weak = await harness.driver.create(harness.spec(isolation=Isolation.NAMESPACE))
    assert (strong.driver, weak.driver) == ("gvisor", "namespace")
    await agent.run("echo kept > /file")
    layers = await harness.driver.snapshot(strong, "shared")
    copy = await harness.driver.create(harness.spec(layers=layers, isolation=Isolation.NAMESPACE))
    assert await harness.agent(copy).read("/file") == "kept\n"
    fork = await harness.driver.fork(strong, harness.spec(isolation=Isolation.NAMESPACE))
    assert fork.driver == "gvisor", "a fork is isolated like its original"


@pytest.mark.parametrize("place", ["/tmp", "/usr/bin/sudo"])
async def test_links_in_the_image_cannot_lead_to_files_of_the_host(harness: DriverHarness, place: str) -> None:
    """These files are mounted by the engine, which sees the host's file system."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        secret = Path(folder, "secret")
        secret.write_text("of the host")
        target = folder if place == "/tmp" else secret
        handle = await harness.driver.create(harness.spec(isolation=Isolation.NAMESPACE))
        await harness.agent(handle).run(f"rm -rf {place}; mkdir -p /usr/bin; ln -s {target} {place}")
        layers = await harness.driver.snapshot(handle, "hostile")
        with contextlib.suppress(SandyardError):  # gVisor does not start from every such image
            _, agent = await harness.create(layers=layers)
            read = await agent.run(f"cat {secret} {place} {place}/secret /dev/.sudo")
            assert "of the host" not in read.out
