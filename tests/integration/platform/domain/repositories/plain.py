"""Repositories and bundles made by plain git on this machine, for tests."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sandyard.platform.domain.repositories.errors import GitFailedError
from sandyard.platform.domain.repositories.model import Bundle, Identity

ANN = Identity("Ann Ång", "ann@example.org")
BOB = Identity("Bob", "bob@example.org")
_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "LC_ALL": "C",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": ANN.name,
    "GIT_AUTHOR_EMAIL": ANN.email,
    "GIT_COMMITTER_NAME": BOB.name,
    "GIT_COMMITTER_EMAIL": BOB.email,
}


@dataclass
class Repository:
    """A repository with a work tree. It is a RepositoryReader too."""

    path: Path

    @classmethod
    def new(cls, path: Path) -> Repository:
        path.mkdir(parents=True)
        repository = cls(path)
        repository.git("init", "-q", "-b", "main")
        return repository

    def git(self, *arguments: str, stdin: bytes | None = None) -> str:
        return os.fsdecode(self.raw(*arguments, stdin=stdin)).strip()

    def raw(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        ran = subprocess.run(
            ["git", *arguments], cwd=self.path, env=_ENVIRONMENT, input=stdin, capture_output=True, check=False
        )
        if ran.returncode:
            raise GitFailedError(ran.stderr.decode(errors="replace"))
        return ran.stdout

    def write(self, name: str | bytes, content: bytes | str = "x\n", mode: int = 0o644) -> None:
        path = Path(os.fsdecode(os.path.join(os.fsencode(self.path), os.fsencode(name))))  # noqa: PTH118 - names are bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)

    def commit(self, message: str = "feat: more", **files: str) -> str:
        for name, content in files.items():
            self.write(name, content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def bundle(self, path: Path, *what: str) -> Bundle:
        self.git("bundle", "create", "-q", str(path), *what)
        return Bundle(str(path), path.stat().st_size)

    async def read(self, *arguments: str, limit: int = 8 << 20) -> tuple[bytes, bool]:
        output = self.raw(*arguments)
        return output[:limit], len(output) > limit
