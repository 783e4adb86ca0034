"""Check that docs/isolation.md matches the scenarios, and that these cover the benchmarks."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.isolation import document
from tests.acceptance.isolation.levels import LEVELS
from tests.acceptance.isolation.scenarios import SCENARIOS, SOURCES


def test_the_document_is_current() -> None:
    assert document.TARGET.read_text() == document.write(), "run `make isolation`"


def test_every_scenario_of_the_benchmarks_is_covered() -> None:
    listed = {(benchmark, name) for benchmark, names in SOURCES.items() for name in names}
    assert {source for scenario in SCENARIOS for source in scenario.sources} == listed
    assert [len(names) for names in SOURCES.values()] == [18, 15]


def test_names_are_unique() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


def test_outcomes_that_no_test_has_confirmed_are_found(tmp_path: Path) -> None:
    assert len(document.find_unconfirmed(tmp_path)) == len(SCENARIOS) * len(LEVELS)
    document.record(tmp_path, LEVELS[0], SCENARIOS[0])
    unconfirmed = document.find_unconfirmed(tmp_path)
    assert len(unconfirmed) == len(SCENARIOS) * len(LEVELS) - 1
    assert f"{LEVELS[0].name}: {SCENARIOS[0].name}" not in unconfirmed
