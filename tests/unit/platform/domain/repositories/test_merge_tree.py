"""Parse git's output for a merge with conflicts."""

from __future__ import annotations

import pytest

from sandyard.platform.domain.repositories import merge_tree
from sandyard.platform.domain.repositories.errors import ConflictsError
from sandyard.platform.domain.repositories.model import Conflict, Conflicts

TREE = "1" * 40


def listing(names: list[str], *messages: tuple[str, ...]) -> bytes:
    """Return output like that of `git merge-tree --write-tree --messages --name-only -z`."""
    said = [field for *files, kind, detail in messages for field in (str(len(files)), *files, kind, detail)]
    return "".join(f"{field}\0" for field in [TREE, *names, "", *said]).encode()


def clash(name: str) -> tuple[str, str, str]:
    return name, "CONFLICT (contents)", f"CONFLICT (add/add): Merge conflict in {name}\n"


def test_parses_files_and_messages() -> None:
    told = listing(["a", "b"], ("a", "Auto-merging", "Auto-merging a\n"), clash("a"))
    detail = "CONFLICT (add/add): Merge conflict in a"
    assert merge_tree.parse_conflicts(told) == Conflicts(
        (Conflict("a", "add/add", detail), Conflict("b", "content")), 2
    )


def test_includes_file_named_only_in_message() -> None:
    said = "CONFLICT (rename/delete): old renamed to new"
    told = listing(["new"], ("old", "new", "CONFLICT (rename/delete)", said))
    assert merge_tree.parse_conflicts(told) == Conflicts(
        (Conflict("new", "rename/delete", said), Conflict("old", "rename/delete", said)), 2
    )


def test_limits_number_of_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_tree, "MAX_CONFLICTS", 3)
    monkeypatch.setattr(merge_tree, "MAX_MESSAGE_FIELDS", 10)  # two and a half messages
    names = [f"f{number}" for number in range(50)]
    found = merge_tree.parse_conflicts(listing(names, *map(clash, names)))
    assert [one.path for one in found.files] == ["f0", "f1", "f2"]
    assert [one.kind for one in found.files] == ["add/add", "add/add", "content"]
    assert found.total == 50
    assert "f0, f1, f2 and 47 more" in ConflictsError(found.files, total=found.total).message
