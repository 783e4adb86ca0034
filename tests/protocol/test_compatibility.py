"""Check that the compatibility document matches the installed JavaScript packages; see also tests/unit/test_compatibility.py."""

from __future__ import annotations

import pytest

from .compatibility import document, verbs


@pytest.mark.parametrize("package", ["e2b (npm)", "@e2b/code-interpreter (npm)", "@e2b/cli (npm)"])
def test_the_document_names_the_installed_versions(package: str) -> None:
    assert f"`{package}` {verbs.versions()[package]}" in document.TARGET.read_text(), "run `make compatibility`"


def test_every_verb_is_in_the_document() -> None:
    text = document.TARGET.read_text()
    assert {verb.row for verb in verbs.javascript() if f"| `{verb.row}` |" not in text} == set()
