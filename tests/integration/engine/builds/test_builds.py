"""Builds from the first step to the last, and what remains of them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from sandyard.engine.builds import start_check
from sandyard.engine.builds.model import BuildStatus, Recipe, Size
from sandyard.engine.images.model import PasswordAuth
from sandyard.engine.sandboxes.agent import Agent
from sandyard.engine.sandboxes.model import Defaults, StartCommand
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.secret import Secret
from tests.integration.engine.builds.harness import BuildsHarness, env, run


async def test_steps_build_on_each_other(harness: BuildsHarness) -> None:
    product = await harness.build_product(
        "one", env(A="1"), run('echo "$A $FROM_BASE" > a'), env(B="$A-2"), run('echo "$B" >> a')
    )
    assert product.state.env == {"FROM_BASE": "yes", "A": "1", "B": "1-2"}
    template = harness.sandboxes.resolve_template("one")
    assert (template.aliases, template.defaults, template.start) == (("one",), Defaults("user"), None)
    sandbox = await harness.create_sandbox("one")
    assert harness.read_file(sandbox, "home/user/a") == "1 yes\n1-2\n"
    assert harness.sandboxes_on_disk() == {sandbox.id}, "the sandbox of the build is removed"
    assert harness.sandboxes.list_snapshots().items == (), "layers are not listed as snapshots"


async def test_variables_alone_create_no_layers(harness: BuildsHarness) -> None:
    product = await harness.build_product("plain", env(A="1"), env(B="two words"))
    assert (product.layers, product.snapshots) == ((), ())
    assert harness.snapshots_on_disk() == set()


async def test_the_longest_cached_prefix_is_reused(harness: BuildsHarness) -> None:
    first = await harness.build("one", run("date +%N > when"), run("cat when > again"))
    second = await harness.build("two", run("date +%N > when"), run("cat when > again"))
    assert first.product and second.product
    assert first.product.layers == second.product.layers
    third = await harness.build("three", run("date +%N > when"), run("cat when > other"))
    assert [line[:20] for line in harness.log_lines(third) if "RUN" in line] == [
        "CACHED [builder 1/2]",
        "[builder 2/2] RUN ca",
    ]
    one, three = await harness.create_sandbox("one"), await harness.create_sandbox("three")
    assert harness.read_file(one, "home/user/when") == harness.read_file(three, "home/user/other")


async def test_records_with_paths_of_layers_still_work(harness: BuildsHarness) -> None:
    """Earlier versions recorded the paths of layers instead of their names."""
    await harness.build_product("one", run("echo built > a"))
    sandbox = await harness.create_sandbox("one")
    snapshot = await harness.sandboxes.snapshot(sandbox.id)
    assert snapshot.layers[0].startswith("snap:")
    changed = 0
    for (table,) in harness.database.query("SELECT name FROM sqlite_master WHERE type = 'table'"):
        for _, column, *_ in harness.database.query(f"PRAGMA table_info({table})"):
            old, new = '"snap:', f'"{harness.path}/fake/snapshots/'
            found = harness.database.query(f"SELECT count(*) FROM {table} WHERE instr({column}, ?)", (old,))[0][0]
            if found:
                changed += found
                harness.database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (old, new))
    assert changed >= 4, "a sandbox, a snapshot, a template and a layer in the cache"
    await harness.crash()
    await harness.start()
    assert harness.sandboxes.get(sandbox.id).layers[0].startswith("/")
    assert harness.read_file(sandbox, "home/user/a") == "built\n"
    await harness.sandboxes.pause(sandbox.id, memory=False)
    await harness.sandboxes.connect(sandbox.id, 60)
    for template in ("one", snapshot.id):
        assert harness.read_file(await harness.create_sandbox(template), "home/user/a") == "built\n"
    again = await harness.build("two", run("echo built > a"), run("cat a > b"))
    assert "CACHED [builder 1/2]" in [line[:20] for line in harness.log_lines(again)]
    assert harness.read_file(await harness.create_sandbox("two"), "home/user/b") == "built\n"


async def test_force_applies_to_all_following_steps(harness: BuildsHarness) -> None:
    steps = (run("echo 1"), run("echo 2"), run("echo 3"))
    await harness.build_product("one", *steps)
    partly_forced = await harness.build("one", steps[0], run("echo 2", force=True), steps[2])
    assert ["CACHED" in line for line in harness.log_lines(partly_forced) if "RUN" in line] == [True, False, False]
    fully_forced = await harness.build("one", *steps, force=True)
    assert ["CACHED" in line for line in harness.log_lines(fully_forced) if "RUN" in line] == [False, False, False]


async def test_builds_on_another_base_do_not_share_the_cache(harness: BuildsHarness) -> None:
    await harness.build_product("one", run("echo 1"))
    derived = await harness.build("two", run("echo 1"), template="one")
    assert not [line for line in harness.log_lines(derived) if "CACHED" in line]
    await harness.build_product("one", run("echo new"))
    again = await harness.build("two", run("echo 1"), template="one")
    assert not [line for line in harness.log_lines(again) if "CACHED" in line], "`one` is another build now"


async def test_a_build_can_start_from_an_image(harness: BuildsHarness) -> None:
    credentials = PasswordAuth(username="me", password=Secret("hidden"))
    build = await harness.build(
        "one", run('echo "$FROM_IMAGE" > a'), template=None, image="app:1", registry=credentials
    )
    assert build.status is BuildStatus.READY
    assert "Pulling app:1" in harness.log_lines(build)
    assert harness.images.requests == [("app:1", credentials)]
    assert build.product is not None
    assert (build.product.state.user, build.product.state.workdir) == ("user", None)
    assert b"hidden" not in (harness.path / "engine.db").read_bytes() + (harness.path / "engine.db-wal").read_bytes()
    missing = await harness.build("two", template=None, image="nothing:1")
    assert missing.reason is not None
    assert (missing.reason.message, missing.reason.step) == ("Image nothing:1 not found.", "base")
    own = await harness.build("three", template=None, image="docker.io/e2bdev/base:latest")
    assert own.product is not None
    assert own.product.state.env == {"FROM_BASE": "yes"}
    assert len(harness.images.requests) == 2


async def test_start_commands_run_during_the_build_and_are_stored(
    harness: BuildsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the fake driver's sandboxes share this machine's ports, of which other tests open some at any moment
    monkeypatch.setattr(start_check, "TCP_TABLES", "/dev/null")
    product = await harness.build_product("one", start="touch started; sleep 100", ready="test -e started")
    assert product.start == StartCommand("touch started; sleep 100", "test -e started")
    cached = await harness.build("two", start="touch started; sleep 100", ready="test -e started")
    assert any(line.startswith("CACHED [finalize]") for line in harness.log_lines(cached))
    sleeping = await harness.build_product("three", start="sleep 100", ready="sleep 0.1")
    assert sleeping.start == StartCommand("sleep 100", None), "a ready command that only sleeps is not stored"
    checked = await harness.build_product("four", ready="true")
    assert checked.start is None
    assert harness.sandboxes_on_disk() == set()


@pytest.mark.parametrize(
    ("start", "ready", "timeout_s", "message"),
    [
        ("exit 3", "false", 60, "failed to run start command 'exit 3': exit status 3"),
        ("sleep 100", "false", 1, "The template was not ready after 1 s: the ready command 'false' never succeeded."),
        ("true", "false", 1, "The template was not ready after 1 s"),
    ],
)
async def test_a_build_fails_when_its_start_command_fails(
    tmp_path: Path, start: str, ready: str, timeout_s: float, message: str
) -> None:
    harness = BuildsHarness(tmp_path, start_patience_s=timeout_s)
    await harness.start()
    try:
        build = await harness.build("one", run("true"), start=start, ready=ready)
        assert build.reason is not None
        assert build.reason.step == "finalize"
        assert build.reason.message.startswith(message)
        with pytest.raises(NotFoundError):
            harness.sandboxes.resolve_template("one")
    finally:
        await harness.stop()


async def test_builds_beyond_the_limit_wait(harness: BuildsHarness) -> None:
    """Two builds run; the third waits and can be cancelled while it waits."""
    slow = [await harness.start_build(f"slow-{number}", run("sleep 600")) for number in range(2)]
    third, fourth = (
        await harness.start_build("third", run("echo third")),
        await harness.start_build("fourth", run("echo fourth")),
    )
    assert [harness.reload(item).status.value for item in (*slow, third, fourth)] == [
        "building",
        "building",
        "waiting",
        "waiting",
    ]
    await harness.builds.cancel("third", third.id)
    assert harness.reload(third).reason is not None
    with pytest.raises(ConflictError):
        await harness.builds.cancel("third", third.id)
    await harness.builds.delete("slow-0")
    assert (await harness.wait_for_end(fourth)).status is BuildStatus.READY
    with pytest.raises(NotFoundError):
        harness.reload(slow[0])
    await harness.until(lambda: len(harness.sandboxes_on_disk()) == 1)


ECHO = Recipe(template="base", steps=(run("echo 1"),))


async def test_the_second_of_two_builds_started_together_replaces_the_first(harness: BuildsHarness) -> None:
    """The first is cancelled before its task has started to run."""
    _, first = harness.builds.request("one", (), Size())
    _, second = harness.builds.request("one", (), Size())
    await asyncio.gather(*(harness.builds.start("one", build.id, ECHO) for build in (first, second)))
    assert (await harness.wait_for_end(second)).status is BuildStatus.READY
    replaced = harness.reload(first)
    assert replaced.reason is not None
    assert replaced.reason.message == "A newer build of 'one' was started."
    assert harness.log_lines(first) == ["Build failed: A newer build of 'one' was started."]


@pytest.mark.parametrize("by", ["a newer build", "a client"])
async def test_a_build_can_end_while_it_waits_for_the_build_it_replaces(harness: BuildsHarness, by: str) -> None:
    first = await harness.start_build("one", run("echo begun; sleep 600"))
    await harness.until(lambda: "[builder 1/1] [stdout]: begun" in harness.log_lines(first))
    harness.driver.faults.make_stuck("kill")
    _, second = harness.builds.request("one", (), Size())
    starting = asyncio.create_task(harness.builds.start("one", second.id, ECHO))
    await harness.driver.faults.wait_until_hit("kill")
    _, third = harness.builds.request("one", (), Size())
    call = harness.builds.cancel("one", second.id) if by == "a client" else harness.builds.start("one", third.id, ECHO)
    ending = asyncio.create_task(call)
    await harness.until(lambda: harness.reload(second).status.final)
    harness.driver.faults.heal()
    await asyncio.gather(starting, ending)
    assert harness.reload(first).status is harness.reload(second).status is BuildStatus.ERROR
    if by == "a newer build":
        newest = await harness.wait_for_end(third)
        assert harness.built.find_tagged(third.template_id, "default") == newest


@pytest.mark.slow
async def test_a_build_fails_at_its_time_limit(tmp_path: Path) -> None:
    harness = BuildsHarness(tmp_path, build_timeout_s=8)
    await harness.start()
    try:
        build = await harness.build("one", run("echo before"), run("sleep 600"))
        assert build.reason is not None
        assert build.reason.message == "The build timed out after 8 s (build_timeout_s)."
        assert "[builder 1/2] [stdout]: before" in harness.log_lines(build)
        await harness.until(lambda: harness.sandboxes_on_disk() == set())
    finally:
        await harness.stop()


async def test_a_build_fails_when_its_sandbox_dies(harness: BuildsHarness) -> None:
    build = await harness.start_build("one", run("echo begun; sleep 600"))
    await harness.until(lambda: "[builder 1/1] [stdout]: begun" in harness.log_lines(build))
    os.kill(harness.driver.agents[harness.sandboxes_on_disk().pop()], signal.SIGKILL)
    failed = await harness.wait_for_end(build)
    assert failed.reason is not None
    assert failed.reason.step == "1"
    assert "ended" in failed.reason.message or "connection" in failed.reason.message


@pytest.mark.parametrize("verb", ["create", "snapshot"])
async def test_a_build_fails_when_the_driver_fails(harness: BuildsHarness, verb: str) -> None:
    harness.driver.faults.make_fail(verb, SandyardError("The disk is on fire."))
    failed = await harness.build("one", run("echo 1"))
    assert failed.reason is not None
    assert "on fire" in failed.reason.message
    harness.driver.faults.heal()
    await harness.build_product("one", run("echo 1"))
    assert len(harness.snapshots_on_disk()) == 1


async def test_a_crash_fails_running_builds_and_keeps_finished_ones(tmp_path: Path) -> None:
    harness = BuildsHarness(tmp_path)
    await harness.start()
    kept = await harness.build_product("ready", run("echo ready > state"))
    build = await harness.start_build("one", run("echo first"), run("echo begun; sleep 600"))
    await harness.until(lambda: "[builder 2/2] [stdout]: begun" in harness.log_lines(build))
    template, waiting = harness.builds.request("later", (), Size())
    await harness.crash()
    harness = BuildsHarness(tmp_path)
    await harness.start()
    try:
        failed = harness.reload(build)
        assert failed.reason is not None
        assert failed.reason.message.startswith("The engine ended during the build.")
        assert any("RUN echo first" in line for line in harness.log_lines(build)), (
            "the log of the finished steps is kept"
        )
        assert harness.sandboxes_on_disk() == set()
        assert harness.reload(waiting).status is BuildStatus.WAITING, "a build without a recipe still waits for one"
        assert set(kept.snapshots) <= harness.snapshots_on_disk()
        assert harness.read_file(await harness.create_sandbox("ready"), "home/user/state") == "ready\n"
        again = await harness.build("one", run("echo first"), run("echo second"))
        assert [line[:20] for line in harness.log_lines(again) if "[builder 1/2]" in line] == ["CACHED [builder 1/2]"]
        assert harness.builds.get("later") == template
    finally:
        await harness.stop()


async def test_stopping_the_engine_fails_running_builds_with_a_reason(tmp_path: Path) -> None:
    harness = BuildsHarness(tmp_path)
    await harness.start()
    build = await harness.start_build("one", run("echo begun; sleep 600"))
    await harness.until(lambda: "[builder 1/1] [stdout]: begun" in harness.log_lines(build))
    await harness.stop()
    harness = BuildsHarness(tmp_path)
    await harness.start()
    try:
        stopped = harness.reload(build)
        assert stopped.reason is not None
        assert stopped.reason.message.startswith("The engine was stopped during the build.")
    finally:
        await harness.stop()


async def test_layers_are_removed_when_nothing_needs_them(tmp_path: Path) -> None:
    """The cache keeps one layer; templates, sandboxes and snapshots keep the layers they are built on."""
    harness = BuildsHarness(tmp_path, build_layers_kept=1)
    await harness.start()
    try:
        old = await harness.build_product("one", run("echo old > version"))
        sandbox = await harness.create_sandbox("one")
        snapshot = await harness.sandboxes.snapshot(sandbox.id)
        new = await harness.build_product("one", run("echo new > version"))
        other = await harness.build_product("two", run("echo unrelated"))
        kept = {*old.snapshots, *new.snapshots, *other.snapshots, snapshot.id}
        await harness.until(lambda: harness.snapshots_on_disk() == kept)
        await harness.sandboxes.kill(sandbox.id)
        assert harness.read_file(await harness.create_sandbox(snapshot.id), "home/user/version") == "old\n"
        await harness.builds.delete("one")
        for item in harness.sandboxes.list().items:
            await harness.sandboxes.kill(item.id)
        await harness.sandboxes.delete_snapshot(snapshot.id)
        await harness.until(lambda: harness.snapshots_on_disk() == set(other.snapshots))
        assert harness.builds.cache.shrink(0) == 1
        await harness.builds.delete("two")
        harness.sandboxes.components.snapshots.remove_unused()
        await harness.until(lambda: harness.snapshots_on_disk() == set())
    finally:
        await harness.stop()


async def test_a_build_succeeds_although_its_base_is_deleted(harness: BuildsHarness) -> None:
    base = await harness.build_product("base-of-it", run("echo base > state"))
    build = await harness.start_build("one", run("sleep 0.5; cat state > copy"), template="base-of-it")
    await harness.builds.delete("base-of-it")
    harness.builds.cache.shrink(0)
    assert (await harness.wait_for_end(build)).status is BuildStatus.READY
    assert set(base.snapshots) <= harness.snapshots_on_disk(), "the new template is built on it"
    assert harness.read_file(await harness.create_sandbox("one"), "home/user/copy") == "base\n"


async def test_tags_move_only_on_success(harness: BuildsHarness) -> None:
    first = await harness.build("one", run("true"))
    await harness.build("one", run("false"))
    template = harness.builds.get("one")
    assert harness.built.find_tagged(template.id, "default") == harness.reload(first)
    second = await harness.build("one:v2", run("true"), tags=("stable",))
    assert {tag: history[-1].build_id for tag, history in harness.builds.list_tags(template).items()} == {
        "default": first.id,
        "v2": second.id,
        "stable": second.id,
    }
    assert harness.built.resolve("one:nothing") is None
    harness.builds.assign("one:v2", ["default", "one:next"])
    assert harness.built.find_tagged(template.id, "default") == harness.reload(second)
    harness.builds.remove_tags("one", ["next", "v2"])
    with pytest.raises(NotFoundError):
        harness.builds.remove_tags("one", ["stable", "v2"])
    assert harness.built.resolve("one:stable") is not None
    with pytest.raises(InvalidInputError):
        harness.builds.remove_tags("one", ["default"])
    with pytest.raises(InvalidInputError):
        harness.builds.assign("one", ["other:tag"])


async def test_names_in_use_are_rejected(harness: BuildsHarness) -> None:
    with pytest.raises(ForbiddenError):
        harness.builds.request("base", (), Size())
    with pytest.raises(ForbiddenError):
        harness.builds.set_public("base", True)
    sandbox = await harness.create_sandbox("base")
    await harness.sandboxes.snapshot(sandbox.id, "mine")
    with pytest.raises(ConflictError):
        harness.builds.request("mine", (), Size())
    await harness.build_product("yours")
    with pytest.raises(ConflictError):
        await harness.sandboxes.snapshot(sandbox.id, "yours")


async def test_old_builds_are_deleted(harness: BuildsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.engine.builds.registry.BUILDS_KEPT", 3)
    tagged = await harness.build("one:keep")
    for _ in range(5):
        await harness.build("one")
    template = harness.builds.get("one")
    assert len(harness.builds.list_builds(template)) <= 5
    assert harness.reload(tagged).status is BuildStatus.READY
    assert harness.built.resolve("one") is not None


async def test_pooled_sandboxes_are_of_the_current_build(tmp_path: Path) -> None:
    """Two builds that differ only in a variable have the same layers."""
    harness = BuildsHarness(tmp_path, pool_size=1)
    await harness.start()
    try:
        for value in ("1", "2"):
            await harness.build_product("one", env(A=value))
            for _ in range(2):
                sandbox = await harness.create_sandbox("one")
                await Agent(harness.sandboxes.components.calls, sandbox.handle).run('echo "$A" > a')
                assert harness.read_file(sandbox, "home/user/a") == f"{value}\n"
                await harness.until(lambda: harness.sandboxes.components.pool.ready_count >= 1)
    finally:
        await harness.stop()
