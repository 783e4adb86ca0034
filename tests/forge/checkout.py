"""A clone on disk and the output of git, for the tests of the git server."""

from __future__ import annotations

import base64
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.forge.tokens import Token


@dataclass(frozen=True)
class GitResult:
    code: int
    out: str
    err: str


def run(*arguments: str, cwd: Path, token: Token | str | None = None, bearer: bool = False) -> GitResult:
    """Run git without this machine's configuration. With `bearer`, the token is sent as a bearer token instead of a password."""
    text = token.text if isinstance(token, Token) else token
    variables = {"PATH": os.environ["PATH"], "HOME": str(cwd), "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    variables |= {
        f"GIT_{role}_{what}": f"{what}@example.com" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    if text is not None:
        password = base64.b64encode(f"anybody:{text}".encode()).decode()
        value = f"Authorization: Bearer {text}" if bearer else f"Authorization: Basic {password}"
        variables |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "http.extraHeader", "GIT_CONFIG_VALUE_0": value}
    done = subprocess.run(["git", *arguments], cwd=cwd, env=variables, capture_output=True, check=False, timeout=60)
    return GitResult(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


class Clone:
    def __init__(self, folder: Path, url: str, token: Token) -> None:
        self.folder, self.token = folder, token
        result = run("clone", "--quiet", url, str(folder), cwd=folder.parent, token=token)
        assert result.code == 0, result.err

    def commit(self, name: str, content: bytes, message: str = "feat: more") -> str:
        (self.folder / name).write_bytes(content)
        run("add", ".", cwd=self.folder)
        result = run("commit", "--quiet", "-m", message, cwd=self.folder)
        assert result.code == 0, result.err
        return run("rev-parse", "HEAD", cwd=self.folder).out.strip()

    def push(self, branch: str, token: Token | str | None = None) -> GitResult:
        return run("push", "origin", f"HEAD:{branch}", cwd=self.folder, token=token or self.token)

    def fetch(self) -> GitResult:
        return run("fetch", "origin", cwd=self.folder, token=self.token)
