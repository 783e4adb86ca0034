"""Which sandboxes may run containers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandyard.engine.contract import Isolation
from sandyard.engine.sandboxes.containers import METADATA_KEY, TEMPLATE_VARIABLE
from sandyard.kit.errors import InvalidInputError, UnsupportedError
from tests.unit.engine.sandboxes.harness import BASE, SandboxesHarness

LEVEL = (Isolation.NAMESPACE,)
WANTED = {METADATA_KEY: "true"}
NOT_WANTED = {METADATA_KEY: "false"}
BUILT = replace(BASE, id="built", aliases=(), env={TEMPLATE_VARIABLE: "true"})
BUILT_IN = replace(BASE, id="built-in", aliases=(), containers=True)


@pytest.fixture
async def harness(tmp_path: Path):
    harness = SandboxesHarness(tmp_path, containers=Isolation, gvisor=True, suspend=True, allow_containers=True)
    harness.templates.templates += [BUILT, BUILT_IN]
    await harness.start()
    yield harness
    await harness.stop()


@pytest.mark.parametrize(
    ("template", "metadata", "expected"),
    [
        ("base", {}, False),
        ("base", WANTED, True),
        ("base", NOT_WANTED, False),
        ("built", {}, True),
        ("built", NOT_WANTED, False),
        ("built-in", {}, True),
        ("built-in", NOT_WANTED, False),
    ],
)
async def test_metadata_wins_over_the_template_and_nobody_gets_it_without_asking(
    harness: SandboxesHarness, template: str, metadata: dict[str, str], expected: bool
) -> None:
    sandbox = await harness.create(template=template, metadata=metadata)
    assert sandbox.containers is expected
    assert harness.host.machines[sandbox.id].spec.containers is expected


async def test_a_request_that_cannot_be_met_is_refused_with_the_reason(
    tmp_path: Path, harness: SandboxesHarness
) -> None:
    (tmp_path / "old").mkdir()
    old = SandboxesHarness(tmp_path / "old", gvisor=True, allow_containers=True)
    old.templates.templates += [BUILT, BUILT_IN]
    await old.start()
    for template, metadata in (("base", WANTED), ("built", {}), ("built-in", {})):
        with pytest.raises(UnsupportedError, match="level namespace are not available: the kernel is too old"):
            await old.create(template=template, metadata=metadata)
    with pytest.raises(UnsupportedError, match="level gvisor are not available: it is not installed"):
        await old.create(metadata={**WANTED, "sandyard.isolation": "gvisor"})
    assert not (await old.create(template="built", metadata=NOT_WANTED)).containers
    await old.stop()


async def test_the_operator_can_forbid_containers(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, containers=LEVEL, allow_containers=False)
    await harness.start()
    with pytest.raises(UnsupportedError, match="not allowed by the operator"):
        await harness.create(metadata=WANTED)
    await harness.create(metadata=NOT_WANTED)
    await harness.stop()


async def test_a_sandbox_from_before_the_operator_forbade_containers_is_not_forked(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, containers=LEVEL, allow_containers=True)
    await harness.start()
    sandbox = await harness.create(metadata=WANTED)
    harness.settings = harness.settings.model_copy(update={"allow_containers": False})
    await harness.restart()
    for count in (1, 2):
        with pytest.raises(UnsupportedError, match="not allowed by the operator"):
            await harness.service.fork(sandbox.id, count)
    assert set(harness.host.machines) == {sandbox.id} and harness.host.snapshots == {}
    await harness.stop()


async def test_the_memory_of_a_sandbox_with_containers_is_not_moved_to_disk(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, containers=LEVEL, suspend=True, suspend_after_s=100, allow_containers=True)
    await harness.start()
    for metadata in (WANTED, NOT_WANTED):
        sandbox = await harness.create(metadata=metadata)
        await harness.service.pause(sandbox.id)
        entry = harness.service.components.registry.get(sandbox.id)
        assert harness.service.components.ledger.can_suspend(entry.record) is not sandbox.containers
    await harness.stop()


async def test_containers_need_gvisor_by_default(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, containers=Isolation, gvisor=True)
    harness.templates.templates += [BUILT, BUILT_IN]
    await harness.start()
    for template, metadata in (("base", WANTED), ("built", {}), ("built-in", {})):
        sandbox = await harness.create(template=template, metadata=metadata)
        assert sandbox.containers and sandbox.isolation is Isolation.GVISOR
    assert (await harness.create(template="built", metadata=NOT_WANTED)).isolation is Isolation.NAMESPACE
    with pytest.raises(UnsupportedError, match=r"only at the isolation level gvisor\. Request that level"):
        await harness.create(metadata={**WANTED, "sandyard.isolation": "namespace"})
    await harness.stop()


async def test_without_gvisor_a_request_for_containers_is_refused_with_both_remedies(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, containers=LEVEL)
    await harness.start()
    with pytest.raises(
        UnsupportedError, match=r"need gVisor, .*: it is not installed\. .* SANDYARD_ALLOW_CONTAINERS=true"
    ):
        await harness.create(metadata=WANTED)
    await harness.stop()


async def test_a_value_that_is_not_a_boolean_is_refused(harness: SandboxesHarness) -> None:
    with pytest.raises(InvalidInputError, match=r"The metadata sandyard.containers is 'yes'. Use true or false\."):
        await harness.create(metadata={METADATA_KEY: "yes"})
    harness.templates.templates.append(replace(BUILT, id="odd", env={TEMPLATE_VARIABLE: ""}))
    with pytest.raises(InvalidInputError, match="SANDYARD_CONTAINERS of the template odd is ''"):
        await harness.create(template="odd")


async def test_copies_and_later_starts_of_a_sandbox_keep_it(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(metadata=WANTED)
    (fork,) = await harness.service.fork(sandbox.id)
    assert fork.sandbox is not None and harness.host.machines[fork.sandbox.id].spec.containers
    forks = await harness.service.fork(sandbox.id, count=2)
    assert all(item.sandbox and harness.host.machines[item.sandbox.id].spec.containers for item in forks)
    snapshot = await harness.service.snapshot(sandbox.id)
    await harness.restart()
    assert harness.service.get(sandbox.id).spec.containers
    copy = await harness.create(template=snapshot.id)
    assert copy.containers
    assert not (await harness.create(template=snapshot.id, metadata=NOT_WANTED)).containers
    plain = await harness.service.snapshot((await harness.create()).id)
    assert not (await harness.create(template=plain.id)).containers


async def test_pooled_sandboxes_serve_only_the_same_request(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, containers=LEVEL, pool_size=2, allow_containers=True)
    await harness.start()
    await harness.settle()
    ready = set(harness.host.machines)
    assert ready and not any(machine.spec.containers for machine in harness.host.machines.values())
    sandbox = await harness.create(metadata=WANTED)
    assert sandbox.id not in ready
    await harness.settle()
    pooled = {name for name, machine in harness.host.machines.items() if machine.spec.containers} - {sandbox.id}
    assert pooled
    assert (await harness.create()).id in ready
    claimed = await harness.create(metadata=WANTED)
    assert claimed.id in pooled and claimed.isolation is Isolation.NAMESPACE
    await harness.stop()
