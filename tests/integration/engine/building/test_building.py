"""Builds from the first step to the last, and what is left of them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from sandyard.engine.building.model import Recipe, Size, Status
from sandyard.engine.images.model import PasswordAuth
from sandyard.engine.sandboxes.agent import Agent
from sandyard.engine.sandboxes.model import Defaults, Start
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.secret import Secret
from tests.integration.engine.building.yard import Workyard, env, run


async def test_steps_build_on_each_other(yard: Workyard) -> None:
    product = await yard.made("one", env(A="1"), run('echo "$A $FROM_BASE" > a'), env(B="$A-2"), run('echo "$B" >> a'))
    assert product.state.env == {"FROM_BASE": "yes", "A": "1", "B": "1-2"}
    template = yard.sandboxes.resolve_template("one")
    assert (template.aliases, template.defaults, template.start) == (("one",), Defaults("user"), None)
    sandbox = await yard.sandbox("one")
    assert yard.file(sandbox, "home/user/a") == "1 yes\n1-2\n"
    assert yard.sandboxes_on_disk() == {sandbox.id}, "the sandbox of the build is gone"
    assert yard.sandboxes.snapshots().items == (), "layers are nobody's snapshots"


async def test_variables_alone_need_no_sandbox(yard: Workyard) -> None:
    product = await yard.made("plain", env(A="1"), env(B="two words"))
    assert (product.layers, product.snapshots) == ((), ())
    assert yard.snapshots_on_disk() == set()


async def test_the_longest_prefix_is_taken(yard: Workyard) -> None:
    first = await yard.build("one", run("date +%N > when"), run("cat when > again"))
    second = await yard.build("two", run("date +%N > when"), run("cat when > again"))
    assert first.product and second.product
    assert first.product.layers == second.product.layers
    third = await yard.build("three", run("date +%N > when"), run("cat when > other"))
    assert [line[:20] for line in yard.said(third) if "RUN" in line] == ["CACHED [builder 1/2]", "[builder 2/2] RUN ca"]
    one, three = await yard.sandbox("one"), await yard.sandbox("three")
    assert yard.file(one, "home/user/when") == yard.file(three, "home/user/other")


async def test_force_is_for_all_that_follows(yard: Workyard) -> None:
    steps = (run("echo 1"), run("echo 2"), run("echo 3"))
    await yard.made("one", *steps)
    partly = await yard.build("one", steps[0], run("echo 2", force=True), steps[2])
    assert ["CACHED" in line for line in yard.said(partly) if "RUN" in line] == [True, False, False]
    wholly = await yard.build("one", *steps, force=True)
    assert ["CACHED" in line for line in yard.said(wholly) if "RUN" in line] == [False, False, False]


async def test_another_base_is_another_cache(yard: Workyard) -> None:
    await yard.made("one", run("echo 1"))
    derived = await yard.build("two", run("echo 1"), template="one")
    assert not [line for line in yard.said(derived) if "CACHED" in line]
    await yard.made("one", run("echo new"))
    again = await yard.build("two", run("echo 1"), template="one")
    assert not [line for line in yard.said(again) if "CACHED" in line], "`one` means something else by now"


async def test_images(yard: Workyard) -> None:
    secret = PasswordAuth(username="me", password=Secret("hidden"))
    build = await yard.build("one", run('echo "$FROM_IMAGE" > a'), template=None, image="app:1", registry=secret)
    assert build.status is Status.READY
    assert "Pulling app:1" in yard.said(build)
    assert yard.images.asked == [("app:1", secret)]
    assert build.product is not None
    assert (build.product.state.user, build.product.state.workdir) == ("user", None)
    assert b"hidden" not in (yard.path / "engine.db").read_bytes() + (yard.path / "engine.db-wal").read_bytes()
    missing = await yard.build("two", template=None, image="nothing:1")
    assert missing.reason is not None
    assert (missing.reason.message, missing.reason.step) == ("Image nothing:1 not found.", "base")
    own = await yard.build("three", template=None, image="docker.io/e2bdev/base:latest")
    assert own.product is not None
    assert own.product.state.env == {"FROM_BASE": "yes"}
    assert len(yard.images.asked) == 2


async def test_start_commands(yard: Workyard) -> None:
    product = await yard.made("one", start="touch started; sleep 100", ready="test -e started")
    assert product.start == Start("touch started; sleep 100", "test -e started")
    cached = await yard.build("two", start="touch started; sleep 100", ready="test -e started")
    assert any(line.startswith("CACHED [finalize]") for line in yard.said(cached))
    sleeping = await yard.made("three", start="sleep 100", ready="sleep 0.1")
    assert sleeping.start == Start("sleep 100", None), "what says nothing is not waited for"
    checked = await yard.made("four", ready="true")
    assert checked.start is None
    assert yard.sandboxes_on_disk() == set()


@pytest.mark.parametrize(
    ("start", "ready", "patience_s", "said"),
    [
        ("exit 3", "false", 60, "failed to run start command 'exit 3': exit status 3"),
        ("sleep 100", "false", 1, "The template was not ready after 1 s: the ready command 'false' never succeeded."),
        ("true", "false", 1, "The template was not ready after 1 s"),
    ],
)
async def test_start_commands_that_fail(tmp_path: Path, start: str, ready: str, patience_s: float, said: str) -> None:
    yard = Workyard(tmp_path, start_patience_s=patience_s)
    await yard.start()
    try:
        build = await yard.build("one", run("true"), start=start, ready=ready)
        assert build.reason is not None
        assert build.reason.step == "finalize"
        assert build.reason.message.startswith(said)
        with pytest.raises(NotFoundError):
            yard.sandboxes.resolve_template("one")
    finally:
        await yard.stop()


async def test_few_at_a_time(yard: Workyard) -> None:
    """Two are under way; the third waits, and may be cancelled while it does."""
    slow = [await yard.begin(f"slow-{number}", run("sleep 600")) for number in range(2)]
    third, fourth = await yard.begin("third", run("echo third")), await yard.begin("fourth", run("echo fourth"))
    assert [yard.look(one).status.value for one in (*slow, third, fourth)] == [
        "building",
        "building",
        "waiting",
        "waiting",
    ]
    await yard.builds.cancel("third", third.id)
    assert yard.look(third).reason is not None
    with pytest.raises(ConflictError):
        await yard.builds.cancel("third", third.id)
    await yard.builds.delete("slow-0")
    assert (await yard.ended(fourth)).status is Status.READY
    with pytest.raises(NotFoundError):
        yard.look(slow[0])
    await yard.until(lambda: len(yard.sandboxes_on_disk()) == 1)


ECHO = Recipe(template="base", steps=(run("echo 1"),))


async def test_two_that_are_started_in_one_breath(yard: Workyard) -> None:
    """The first is cancelled before its task has taken a step."""
    _, first = yard.builds.request("one", (), Size())
    _, second = yard.builds.request("one", (), Size())
    await asyncio.gather(*(yard.builds.start("one", build.id, ECHO) for build in (first, second)))
    assert (await yard.ended(second)).status is Status.READY
    replaced = yard.look(first)
    assert replaced.reason is not None
    assert replaced.reason.message == "A newer build of 'one' was started."
    assert yard.said(first) == ["Build failed: A newer build of 'one' was started."]


@pytest.mark.parametrize("by", ["a newer one", "a client"])
async def test_one_that_ends_while_it_waits_for_the_one_it_replaces(yard: Workyard, by: str) -> None:
    first = await yard.begin("one", run("echo begun; sleep 600"))
    await yard.until(lambda: "[builder 1/1] [stdout]: begun" in yard.said(first))
    yard.driver.faults.make_stuck("kill")
    _, second = yard.builds.request("one", (), Size())
    starting = asyncio.create_task(yard.builds.start("one", second.id, ECHO))
    await yard.driver.faults.wait_until_hit("kill")
    _, third = yard.builds.request("one", (), Size())
    call = yard.builds.cancel("one", second.id) if by == "a client" else yard.builds.start("one", third.id, ECHO)
    ending = asyncio.create_task(call)
    await yard.until(lambda: yard.look(second).status.final)
    yard.driver.faults.heal()
    await asyncio.gather(starting, ending)
    assert yard.look(first).status is yard.look(second).status is Status.ERROR
    if by == "a newer one":
        newest = await yard.ended(third)
        assert yard.built.find_tagged(third.template_id, "default") == newest


@pytest.mark.slow
async def test_a_build_has_a_time_limit(tmp_path: Path) -> None:
    yard = Workyard(tmp_path, build_timeout_s=8)
    await yard.start()
    try:
        build = await yard.build("one", run("echo before"), run("sleep 600"))
        assert build.reason is not None
        assert build.reason.message == "The build timed out after 8 s (build_timeout_s)."
        assert "[builder 1/2] [stdout]: before" in yard.said(build)
        await yard.until(lambda: yard.sandboxes_on_disk() == set())
    finally:
        await yard.stop()


async def test_a_sandbox_that_dies_under_a_build(yard: Workyard) -> None:
    build = await yard.begin("one", run("echo begun; sleep 600"))
    await yard.until(lambda: "[builder 1/1] [stdout]: begun" in yard.said(build))
    os.kill(yard.driver._agents[yard.sandboxes_on_disk().pop()], signal.SIGKILL)
    failed = await yard.ended(build)
    assert failed.reason is not None
    assert failed.reason.step == "1"
    assert "ended" in failed.reason.message or "connection" in failed.reason.message


@pytest.mark.parametrize("verb", ["create", "snapshot"])
async def test_a_driver_that_fails_ends_the_build(yard: Workyard, verb: str) -> None:
    yard.driver.faults.make_fail(verb, SandyardError("The disk is on fire."))
    failed = await yard.build("one", run("echo 1"))
    assert failed.reason is not None
    assert "on fire" in failed.reason.message
    yard.driver.faults.heal()
    await yard.made("one", run("echo 1"))
    assert len(yard.snapshots_on_disk()) == 1


async def test_a_crash(tmp_path: Path) -> None:
    yard = Workyard(tmp_path)
    await yard.start()
    kept = await yard.made("ready", run("echo ready > state"))
    build = await yard.begin("one", run("echo first"), run("echo begun; sleep 600"))
    await yard.until(lambda: "[builder 2/2] [stdout]: begun" in yard.said(build))
    template, waiting = yard.builds.request("later", (), Size())
    await yard.crash()
    yard = Workyard(tmp_path)
    await yard.start()
    try:
        failed = yard.look(build)
        assert failed.reason is not None
        assert failed.reason.message.startswith("The engine ended during the build.")
        assert any("RUN echo first" in line for line in yard.said(build)), "what was done is still told"
        assert yard.sandboxes_on_disk() == set()
        assert yard.look(waiting).status is Status.WAITING, "one without a recipe still waits for it"
        assert set(kept.snapshots) <= yard.snapshots_on_disk()
        assert yard.file(await yard.sandbox("ready"), "home/user/state") == "ready\n"
        again = await yard.build("one", run("echo first"), run("echo second"))
        assert [line[:20] for line in yard.said(again) if "[builder 1/2]" in line] == ["CACHED [builder 1/2]"]
        assert yard.builds.get("later") == template
    finally:
        await yard.stop()


async def test_a_stop_ends_builds_with_a_sentence(tmp_path: Path) -> None:
    yard = Workyard(tmp_path)
    await yard.start()
    build = await yard.begin("one", run("echo begun; sleep 600"))
    await yard.until(lambda: "[builder 1/1] [stdout]: begun" in yard.said(build))
    await yard.stop()
    yard = Workyard(tmp_path)
    await yard.start()
    try:
        stopped = yard.look(build)
        assert stopped.reason is not None
        assert stopped.reason.message.startswith("The engine was stopped during the build.")
    finally:
        await yard.stop()


async def test_what_is_needed_stays_and_the_rest_goes(tmp_path: Path) -> None:
    """The cache keeps one layer; templates, sandboxes and snapshots keep what they stand on."""
    yard = Workyard(tmp_path, build_layers_kept=1)
    await yard.start()
    try:
        old = await yard.made("one", run("echo old > version"))
        sandbox = await yard.sandbox("one")
        snapshot = await yard.sandboxes.snapshot(sandbox.id)
        new = await yard.made("one", run("echo new > version"))
        other = await yard.made("two", run("echo unrelated"))
        kept = {*old.snapshots, *new.snapshots, *other.snapshots, snapshot.id}
        await yard.until(lambda: yard.snapshots_on_disk() == kept)
        await yard.sandboxes.kill(sandbox.id)
        assert yard.file(await yard.sandbox(snapshot.id), "home/user/version") == "old\n"
        await yard.builds.delete("one")
        for one in yard.sandboxes.list().items:
            await yard.sandboxes.kill(one.id)
        await yard.sandboxes.delete_snapshot(snapshot.id)
        await yard.until(lambda: yard.snapshots_on_disk() == set(other.snapshots))
        assert yard.builds._cache.shrink(0) == 1
        await yard.builds.delete("two")
        yard.sandboxes._components.snapshots.collect()
        await yard.until(lambda: yard.snapshots_on_disk() == set())
    finally:
        await yard.stop()


async def test_a_base_that_is_deleted_meanwhile(yard: Workyard) -> None:
    base = await yard.made("base-of-it", run("echo base > state"))
    build = await yard.begin("one", run("sleep 0.5; cat state > copy"), template="base-of-it")
    await yard.builds.delete("base-of-it")
    yard.builds._cache.shrink(0)
    assert (await yard.ended(build)).status is Status.READY
    assert set(base.snapshots) <= yard.snapshots_on_disk(), "the new template stands on it"
    assert yard.file(await yard.sandbox("one"), "home/user/copy") == "base\n"


async def test_tags_move_only_on_success(yard: Workyard) -> None:
    first = await yard.build("one", run("true"))
    await yard.build("one", run("false"))
    template = yard.builds.get("one")
    assert yard.built.find_tagged(template.id, "default") == yard.look(first)
    second = await yard.build("one:v2", run("true"), tags=("stable",))
    assert {tag: history[-1].build_id for tag, history in yard.builds.tags(template).items()} == {
        "default": first.id,
        "v2": second.id,
        "stable": second.id,
    }
    assert yard.built.resolve("one:nothing") is None
    yard.builds.assign("one:v2", ["default", "one:next"])
    assert yard.built.find_tagged(template.id, "default") == yard.look(second)
    yard.builds.remove_tags("one", ["next", "v2"])
    with pytest.raises(NotFoundError):
        yard.builds.remove_tags("one", ["stable", "v2"])
    assert yard.built.resolve("one:stable") is not None
    with pytest.raises(InvalidInputError):
        yard.builds.remove_tags("one", ["default"])
    with pytest.raises(InvalidInputError):
        yard.builds.assign("one", ["other:tag"])


async def test_names_that_are_taken(yard: Workyard) -> None:
    with pytest.raises(ForbiddenError):
        yard.builds.request("base", (), Size())
    with pytest.raises(ForbiddenError):
        yard.builds.publish("base", True)
    sandbox = await yard.sandbox("base")
    await yard.sandboxes.snapshot(sandbox.id, "mine")
    with pytest.raises(ConflictError):
        yard.builds.request("mine", (), Size())
    await yard.made("yours")
    with pytest.raises(ConflictError):
        await yard.sandboxes.snapshot(sandbox.id, "yours")


async def test_old_builds_are_forgotten(yard: Workyard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.engine.building.registry.BUILDS_KEPT", 3)
    tagged = await yard.build("one:keep")
    for _ in range(5):
        await yard.build("one")
    template = yard.builds.get("one")
    assert len(yard.builds.builds(template)) <= 5
    assert yard.look(tagged).status is Status.READY
    assert yard.built.resolve("one") is not None


async def test_ready_sandboxes_are_of_this_very_build(tmp_path: Path) -> None:
    """Two builds that differ in a variable stand on the same layers."""
    yard = Workyard(tmp_path, pool_size=1)
    await yard.start()
    try:
        for value in ("1", "2"):
            await yard.made("one", env(A=value))
            for _ in range(2):
                sandbox = await yard.sandbox("one")
                await Agent(yard.sandboxes._components.calls, sandbox.handle).run('echo "$A" > a')
                assert yard.file(sandbox, "home/user/a") == f"{value}\n"
                await yard.until(lambda: yard.sandboxes._components.pool.ready >= 1)
    finally:
        await yard.stop()
