"""The list of a remote's branches and tags, which may be arbitrarily long."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandyard.platform.domain.repositories import bare_repository, mirror, push
from sandyard.platform.domain.repositories.errors import TooMuchError
from sandyard.platform.domain.repositories.git_process import GitResult
from sandyard.platform.domain.repositories.mirror import Mirrors
from sandyard.platform.domain.repositories.remote import parse_remote
from sandyard.platform.settings import PlatformSettings

COMMIT = "a" * 40
REMOTE = parse_remote("https://git.example/acme/site.git")
LISTING = f"ref: refs/heads/main\tHEAD\n{COMMIT}\tHEAD\n{COMMIT}\trefs/heads/main\n{COMMIT}\trefs/tags/v1\x85\n"


@dataclass
class FakeGit:
    """Git, limited to `ls-remote` and `for-each-ref`."""

    stdout: bytes = LISTING.encode()
    truncated: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, *_: str, **options: Any) -> GitResult:
        self.requests.append(options)
        return GitResult(0, self.stdout, "", truncated=self.truncated)


def mirror_of(git: FakeGit, tmp_path: Path) -> mirror.Mirror:
    return Mirrors(git, PlatformSettings(data_dir=tmp_path)).get("prj_1")  # type: ignore[arg-type]


async def test_rejects_endless_list(tmp_path: Path) -> None:
    git = FakeGit(truncated=True)
    made = mirror_of(git, tmp_path)
    for asked in (made.list_remote_branches(REMOTE, None), made.get_remote_branch(REMOTE, None, "main")):
        with pytest.raises(TooMuchError, match="too many branches and tags"):
            await asked
    assert [options["limit"] for options in git.requests] == [bare_repository.REFS_LIMIT] * 2


async def test_parses_list_in_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def parse_and_record(listing: bytes) -> Any:
        threads.append(threading.current_thread())
        return real(listing)

    real = bare_repository.parse_refs
    for module in (bare_repository, mirror, push):
        monkeypatch.setattr(module, "parse_refs", parse_and_record)
    made = mirror_of(FakeGit(), tmp_path)
    assert await made.list_remote_branches(REMOTE, None) == {"main": COMMIT, "refs/tags/v1\x85": COMMIT}
    assert await made.get_remote_branch(REMOTE, None, "main") == COMMIT
    assert (await made.list_refs("refs/"))["refs/heads/main"] == COMMIT
    assert len(threads) == 3 and threading.main_thread() not in threads
