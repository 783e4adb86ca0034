"""Which labels the host of a sandbox must have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandyard.engine.sandboxes.host_labels import METADATA_KEY, TEMPLATE_VARIABLE
from sandyard.kit.errors import InvalidInputError
from tests.unit.engine.sandboxes.harness import BASE, SandboxesHarness

BUILT = replace(BASE, id="built", aliases=(), env={TEMPLATE_VARIABLE: "gpu=yes, zone=a"})


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SandboxesHarness]:
    harness = SandboxesHarness(tmp_path)
    harness.templates.templates.append(BUILT)
    await harness.start()
    yield harness
    await harness.stop()


@pytest.mark.parametrize(
    ("template", "text", "expected"),
    [
        ("base", None, {}),
        ("base", "", {}),
        ("base", "gpu=yes,zone=b", {"gpu": "yes", "zone": "b"}),
        ("built", None, {"gpu": "yes", "zone": "a"}),
        ("built", "zone=b,rack=7", {"gpu": "yes", "zone": "b", "rack": "7"}),
    ],
)
async def test_metadata_adds_to_the_labels_of_the_template(
    harness: SandboxesHarness,
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    text: str | None,
    expected: dict[str, str],
) -> None:
    monkeypatch.setattr(harness.driver, "name", "cluster")
    sandbox = await harness.create(template=template, metadata={} if text is None else {METADATA_KEY: text})
    assert sandbox.host_labels == expected
    assert harness.host.machines[sandbox.id].spec.host_labels == expected
    await harness.restart()
    assert harness.service.get(sandbox.id).host_labels == expected, "it needs them when it is moved"


@pytest.mark.parametrize("text", ["gpu", "gpu=", "=yes", "gpu=a b"])
async def test_labels_that_no_host_can_have_are_refused(
    harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(harness.driver, "name", "cluster")
    with pytest.raises(InvalidInputError, match=r"The metadata sandyard\.labels"):
        await harness.create(metadata={METADATA_KEY: text})


async def test_an_engine_without_hosts_says_so(harness: SandboxesHarness) -> None:
    with pytest.raises(InvalidInputError, match="requires a host with gpu=yes,zone=a, and this engine has no hosts"):
        await harness.create(template="built")


async def test_pooled_sandboxes_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = SandboxesHarness(tmp_path, pool_size=1)
    await harness.start()
    monkeypatch.setattr(harness.driver, "name", "cluster")
    await harness.create()
    await harness.settle()
    assert harness.service.components.pool.ready_count == 1
    sandbox = await harness.create(metadata={METADATA_KEY: "gpu=yes"})
    assert harness.host.machines[sandbox.id].spec.host_labels == {"gpu": "yes"}
    await harness.stop()
