"""Check that the compatibility document matches the installed Python SDKs; tests/protocol/test_compatibility.py checks JavaScript."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.protocol.clients import table
from tests.protocol.compatibility import document, verbs

STALE = "docs/e2b-compatibility.md was generated for a different SDK version: run `make compatibility`."


@pytest.fixture(scope="module")
def text() -> str:
    return document.TARGET.read_text()


def test_every_verb_is_in_the_document(text: str) -> None:
    missing = {verb.row for verb in verbs.python() if f"| `{verb.row}` |" not in text}
    assert not missing, f"{STALE} It lacks {sorted(missing)}."


@pytest.mark.parametrize("package", ["e2b", "e2b-code-interpreter"])
def test_it_is_of_this_release(text: str, package: str) -> None:
    assert f"`{package}` {verbs.versions()[package]}" in text, STALE


def test_tests_it_names_exist(text: str) -> None:
    files = {part.partition(")")[0] for part in text.split("(../tests/protocol/")[1:]}
    assert files
    assert {name for name in files if not (document.TESTS / name).exists()} == set()


@pytest.mark.parametrize("note", document.notes(), ids=lambda note: note.verb)
def test_notes_are_of_verbs_and_tests_that_exist(note: document.Note, text: str) -> None:
    assert f"| `{document.title(note.verb)}` |" in text, "a note on a verb that no client has"
    assert note.says.endswith(".")
    if note.test is not None:
        file, _, name = note.test.partition("::")
        assert name in _tests(document.TESTS / file), f"there is no {note.test}"


def _tests(path: Path) -> set[str]:
    if path.suffix != ".py":
        return {
            line.split("'")[1] for line in path.read_text().splitlines() if line.startswith(("test('", "withSandbox('"))
        }
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


def test_words_of_javascript_and_python() -> None:
    assert verbs.snake("runCode") == "run_code"
    assert verbs.snake("fromAWSRegistry") == "from_aws_registry"
    assert verbs.snake("toJSON") == "to_json"
    assert verbs.noun("AsyncSandbox", "e2b") == "Sandbox"
    assert verbs.noun("TemplateBuilder", "e2b") == "Template"


def test_private_declarations_are_not_verbs() -> None:
    lines = [
        "declare class Git {",
        "  private readonly commands;",
        "  constructor(commands: Commands);",
        "  clone(url: string): Promise<void>;",
        "  static list<T>(opts?: {",
        "    inner(): void;",
        "  }): T;",
        "  private runGit;",
        "}",
        "declare function loose(x: number): void;",
    ]
    assert list(verbs.list_members(lines)) == [("Git", "constructor"), ("Git", "clone"), ("Git", "list")]


def test_of_several_tests_the_one_about_the_verb_is_named() -> None:
    kill = verbs.Verb(verbs.SYNC, "Sandbox", "kill")
    few = document.Seen("test_other.py", "test_something", 1)
    named = document.Seen("test_kill.py", "test_twice", 9)
    assert document.measure_distance(kill, named) < document.measure_distance(kill, few)


def test_the_document_on_clients_is_of_these_clients() -> None:
    assert table.TARGET.read_text() == table.write_document(table.read_clients()), "run `make clients` to regenerate it"
    assert all(client.script.exists() and client.pinned["e2b"] for client in table.read_clients())
