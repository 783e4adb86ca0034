"""Which isolation level a new sandbox gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandyard.engine.contract import Capabilities, Isolation
from sandyard.engine.sandboxes.isolation import METADATA_KEY, TEMPLATE_VARIABLE, choose_isolation
from sandyard.engine.sandboxes.model import Template
from sandyard.kit.errors import InvalidInputError, UnsupportedError
from tests.unit.engine.sandboxes.harness import SandboxesHarness

NAMESPACE, GVISOR = Isolation.NAMESPACE, Isolation.GVISOR
PLAIN = Template("base", ())
BUILT = replace(PLAIN, env={TEMPLATE_VARIABLE: "gvisor"})
SNAPSHOT = replace(PLAIN, isolation=GVISOR)


def make_capabilities(*levels: Isolation) -> Capabilities:
    return Capabilities(
        freeze=True,
        suspend=frozenset(),
        memory_fork=frozenset(),
        live_copy="cow",
        limits=frozenset(),
        egress=True,
        isolation=frozenset(levels),
        containers=frozenset(),
        missing={} if GVISOR in levels else {"gvisor": "it is not installed"},
    )


BOTH = make_capabilities(NAMESPACE, GVISOR)


@pytest.mark.parametrize(
    ("metadata", "template", "minimum", "expected"),
    [
        ({}, PLAIN, NAMESPACE, NAMESPACE),
        ({}, PLAIN, GVISOR, GVISOR),
        ({METADATA_KEY: "gvisor"}, PLAIN, NAMESPACE, GVISOR),
        ({}, BUILT, NAMESPACE, GVISOR),
        ({}, SNAPSHOT, NAMESPACE, GVISOR),
        ({METADATA_KEY: "namespace"}, BUILT, NAMESPACE, NAMESPACE),
        ({METADATA_KEY: "namespace"}, SNAPSHOT, NAMESPACE, NAMESPACE),
    ],
)
def test_metadata_wins_over_the_template_and_the_minimum_applies_without_both(
    metadata: dict[str, str], template: Template, minimum: Isolation, expected: Isolation
) -> None:
    assert choose_isolation(metadata, template, minimum, BOTH) is expected


def test_a_level_below_the_minimum_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="requires gvisor"):
        choose_isolation({METADATA_KEY: "namespace"}, PLAIN, GVISOR, BOTH)
    with pytest.raises(InvalidInputError, match="requires gvisor"):
        choose_isolation({}, replace(PLAIN, isolation=NAMESPACE), GVISOR, BOTH)


def test_a_level_that_is_not_available_is_refused_and_never_replaced() -> None:
    for template, minimum in ((BUILT, NAMESPACE), (SNAPSHOT, NAMESPACE), (PLAIN, GVISOR)):
        with pytest.raises(UnsupportedError, match="gvisor is not available: it is not installed"):
            choose_isolation({}, template, minimum, make_capabilities(NAMESPACE))


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(
        InvalidInputError, match=r"The metadata sandyard.isolation is 'kvm'.* Use namespace or gvisor\."
    ):
        choose_isolation({METADATA_KEY: "kvm"}, PLAIN, NAMESPACE, BOTH)
    with pytest.raises(InvalidInputError, match="SANDYARD_ISOLATION of the template base is ''"):
        choose_isolation({}, replace(PLAIN, env={TEMPLATE_VARIABLE: ""}), NAMESPACE, BOTH)


async def test_a_sandbox_below_the_minimum_cannot_be_forked(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, gvisor=True)
    await harness.start()
    parent = await harness.create()
    await harness.stop()
    raised = SandboxesHarness(tmp_path, gvisor=True, min_isolation="gvisor")
    raised.host = harness.host
    await raised.start()
    with pytest.raises(InvalidInputError, match="requires gvisor"):
        await raised.service.fork(parent.id)
    await raised.stop()
