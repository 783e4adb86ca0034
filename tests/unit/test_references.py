"""docs/reference matches the code: `make references` generates it."""

from __future__ import annotations

import pytest

from sandyard.engine.settings import EngineSettings
from sandyard.platform.settings import PlatformSettings
from tests import documents
from tests.documents import events, settings


@pytest.mark.parametrize("name", documents.PAGES)
def test_it_is_up_to_date(name: str) -> None:
    current = (documents.FOLDER / f"{name}.md").read_text()
    assert current == documents.render(name), f"docs/reference/{name}.md is out of date: run `make references`."


@pytest.mark.parametrize("kind", [PlatformSettings, EngineSettings])
def test_every_setting_is_described(kind: type[PlatformSettings] | type[EngineSettings]) -> None:
    listed = list(settings.list_settings(kind))
    assert {item.name for item in listed} == {
        name for name in kind.model_fields if kind.variables.get(name, name) is not None
    }
    missing = [candidate.name for candidate in listed if not candidate.text]
    assert not missing, f"Write a string below these fields of {kind.__name__}: {missing}"
    assert all(item.section for item in listed)


def test_every_event_is_described() -> None:
    described = {note.kind for note in events.read_notes()}
    emitted = events.find_emitted().kinds
    assert len(emitted) > 60
    assert set(emitted) <= described, "Describe these events in tests/documents/events.toml."
    assert described <= set(events.list_possible_kinds()), (
        "These events of tests/documents/events.toml are not in the code."
    )


def test_every_field_of_an_event_is_described() -> None:
    emitted = events.find_emitted().kinds
    assert emitted["turn.started"] >= {"turnId", "status"}, "fields that a function returns are found"
    assert emitted["attempt.queued"] >= {"attemptId", "round"}, "fields that a wrapper adds are found"
    notes = {note.kind: set(note.fields) for note in events.read_notes()}
    lacking = {kind: fields - notes[kind] for kind, fields in emitted.items() if not fields <= notes[kind]}
    assert not lacking, "Add these fields in tests/documents/events.toml."
