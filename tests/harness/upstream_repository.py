"""A remote repository and a colleague who pushes to it."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Upstream:
    """A bare repository, and a colleague's clone of it."""

    def __init__(self, folder: Path) -> None:
        self.bare, self.clone = folder / "site.git", folder / "clone"
        self.git("init", "-q", "--bare", "-b", "main", str(self.bare), at=folder)
        self.git("clone", "-q", str(self.bare), str(self.clone), at=folder)
        self.commit("feat: begin", **{"a.txt": "one\ntwo\nthree\n", "b.txt": "b\n"})

    def git(self, *arguments: str, at: Path | None = None) -> str:
        identity = ["-c", "user.name=Maria", "-c", "user.email=maria@example.org"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=at or self.clone, capture_output=True, text=True, check=True
        )
        return done.stdout

    def commit(self, message: str, branch: str = "main", **files: str) -> None:
        for name, text in files.items():
            (self.clone / name).write_text(text)
        self.git("add", ".")
        self.git("commit", "-qm", message)
        self.git("push", "-q", "origin", f"HEAD:{branch}")

    def subjects(self, branch: str) -> list[str]:
        return self.git("log", "--format=%s", branch, at=self.bare).splitlines()
