"""Parse git's output for a merge with conflicts."""

from __future__ import annotations

import pytest

from sandyard.platform.domain.repositories import merge_tree
from sandyard.platform.domain.repositories.errors import ConflictsError
from sandyard.platform.domain.repositories.model import Conflict, Conflicts

TREE = "1" * 40


def listing(names: list[str], *messages: tuple[str, ...]) -> bytes:
    """Return output like that of `git merge-tree --write-tree --messages --name-only -z`."""
    fields = [field for *files, kind, detail in messages for field in (str(len(files)), *files, kind, detail)]
    return "".join(f"{field}\0" for field in [TREE, *names, "", *fields]).encode()


def clash(name: str) -> tuple[str, str, str]:
    return name, "CONFLICT (contents)", f"CONFLICT (add/add): Merge conflict in {name}\n"


def test_parses_files_and_messages() -> None:
    output = listing(["a", "b"], ("a", "Auto-merging", "Auto-merging a\n"), clash("a"))
    detail = "CONFLICT (add/add): Merge conflict in a"
    assert merge_tree.parse_conflicts(output) == Conflicts(
        (Conflict("a", "add/add", detail), Conflict("b", "content")), 2
    )


def test_includes_file_named_only_in_message() -> None:
    message = "CONFLICT (rename/delete): old renamed to new"
    output = listing(["new"], ("old", "new", "CONFLICT (rename/delete)", message))
    assert merge_tree.parse_conflicts(output) == Conflicts(
        (Conflict("new", "rename/delete", message), Conflict("old", "rename/delete", message)), 2
    )


def test_limits_number_of_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_tree, "MAX_CONFLICTS", 3)
    monkeypatch.setattr(merge_tree, "MAX_MESSAGE_FIELDS", 10)  # two and a half messages
    names = [f"f{number}" for number in range(50)]
    found = merge_tree.parse_conflicts(listing(names, *map(clash, names)))
    assert [file.path for file in found.files] == ["f0", "f1", "f2"]
    assert [file.kind for file in found.files] == ["add/add", "add/add", "content"]
    assert found.total == 50
    assert "f0, f1, f2 and 47 more" in ConflictsError(found.files, total=found.total).message
