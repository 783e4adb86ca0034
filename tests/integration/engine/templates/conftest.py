from __future__ import annotations

import pytest

from sandyard.engine.templates import base, catalogue, host
from sandyard.engine.templates.catalogue import Catalogue
from sandyard.engine.templates.folder import TemplateFolder
from sandyard.engine.templates.trust import Trust
from tests.integration.engine.templates.harness import publish
from tests.unit.engine.templates.conftest import folder, machine, put

__all__ = ["folder", "machine", "put"]


@pytest.fixture
def fake_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which `host` is built at once, there are no trust settings to carry over, and nothing is missing for `base`."""
    monkeypatch.setattr(host, "build", lambda folder: folder.find("host", "h1") or publish(folder, "host", "h1"))
    monkeypatch.setattr(host, "compute_fingerprint", lambda: "h1")
    monkeypatch.setattr(catalogue, "read_trust", Trust)
    monkeypatch.setattr(catalogue, "list_missing_requirements", list)
    monkeypatch.setattr(base, "make_recipe", lambda: type("Recipe", (), {"digest": "b1"}))


@pytest.fixture
def templates(folder: TemplateFolder) -> Catalogue:
    return Catalogue(folder.directory)
