"""A mirror of a repository on a real git server, and a colleague's work tree beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandyard.kit.secret import Secret
from sandyard.platform.domain.repositories.git_process import Git
from sandyard.platform.domain.repositories.mirror import Mirror, Mirrors
from sandyard.platform.domain.repositories.model import Credential
from sandyard.platform.domain.repositories.push import RetryPolicy
from sandyard.platform.domain.repositories.remote import Remote, parse_remote
from sandyard.platform.settings import PlatformSettings
from tests.forge.gitserver import GitServer
from tests.forge.repositories import Repository, git


@dataclass
class MirrorHarness:
    folder: Path
    server: GitServer
    site: Repository
    sleeps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = PlatformSettings(data_dir=self.folder / "data", git_transfer_limit=64 << 20)
        self.remote: Remote = parse_remote(self.site.url)
        self.token = self.server.tokens.make("ada")
        self.credential = Credential(token=Secret(self.token.text))
        self.restart()

    def restart(self, **changed: int) -> None:
        """Restart the platform on the same disk, with these settings changed."""
        self.settings = self.settings.model_copy(update=changed)

        async def sleep(seconds: float) -> None:
            self.sleeps.append(seconds)

        host = Git(self.settings.git_dir, timeout_s=60)
        self.mirrors = Mirrors(host, self.settings, retry_policy=RetryPolicy(sleep=sleep))
        self.mirror: Mirror = self.mirrors.get("p1")

    async def refresh(self) -> None:
        await self.mirror.refresh(self.remote, self.credential)

    def clone_guest(self, name: str = "guest") -> Path:
        """Return a clone with its own commits, like a checkout in a sandbox."""
        work = self.folder / name
        if not work.exists():
            git("clone", "-q", str(self.site.path), str(work), cwd=self.folder)
        return work

    def commit_in_guest(self, files: dict[str, str], message: str = "feat: more", name: str = "guest") -> str:
        """Commit files in the clone and return the commit."""
        work = self.clone_guest(name)
        for path, text in files.items():
            (work / path).write_text(text)
        git("add", "-A", cwd=work)
        git("commit", "-q", "-m", message, cwd=work)
        return git("rev-parse", "HEAD", cwd=work).decode().strip()

    def create_bundle(self, *arguments: str, name: str = "guest") -> Path:
        path = self.folder / "out.bundle"
        git("bundle", "create", "-q", str(path), *arguments, cwd=self.clone_guest(name))
        return path

    async def import_commit(self, files: dict[str, str], name: str = "guest") -> str:
        """Commit files in the clone and import the commit into the mirror."""
        commit = self.commit_in_guest(files, name=name)
        await self.mirror.import_bundle(
            self.create_bundle("HEAD", "--not", "origin/main", name=name), {"HEAD": f"refs/sandyard/{name}"}
        )
        return commit


@contextmanager
def open_mirror_harness(folder: Path) -> Iterator[MirrorHarness]:
    with GitServer() as server:
        yield MirrorHarness(folder, server, server.repository("acme/website", files={"README.md": "# Website\n"}))
