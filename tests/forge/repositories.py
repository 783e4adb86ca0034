"""Bare repositories on disk, and actions of other users by real git: commit, merge, delete a branch, reject a push."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

Files = Mapping[str, str | bytes | None]
"""The files of a commit, by path. None deletes the file."""


class GitError(Exception):
    """Git failed. Contains its error message."""


def git(*arguments: str, cwd: Path, stdin: bytes | None = None, ok: tuple[int, ...] = (0,), **more: str) -> bytes:
    """Run git and return its standard output. Ignores the git configuration of the machine."""
    plain = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "LC_ALL": "C"}
    person = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in _SOMEBODY.items()}
    variables = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **plain, **person, **more}
    done = subprocess.run(["git", *arguments], cwd=cwd, input=stdin, capture_output=True, env=variables, check=False)
    if done.returncode not in ok:
        raise GitError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


_SOMEBODY = {"NAME": "Some Body", "EMAIL": "somebody@example.com"}


def _stream(branch: str, parent: str | None, message: str, files: Files) -> bytes:
    """Yield one commit in the format of `git fast-import`, which prints the id of the commit."""
    text = message.encode() if message.endswith("\n") else f"{message}\n".encode()
    lines = [f"commit refs/heads/{branch}".encode(), b"mark :1"]
    lines += [f"committer {_SOMEBODY['NAME']} <{_SOMEBODY['EMAIL']}> now".encode(), b"data %d" % len(text), text]
    lines += [f"from {parent}".encode()] if parent else []
    for path, content in files.items():
        quoted = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        if content is None:
            lines.append(f'D "{quoted}"'.encode())
            continue
        data = content.encode() if isinstance(content, str) else content
        mode = "100755" if data.startswith(b"#!") else "100644"
        lines += [f'M {mode} inline "{quoted}"'.encode(), b"data %d" % len(data), data]
    return b"\n".join([*lines, b"", b"get-mark :1", b""])


class Repository:
    """One bare repository. `slug` is owner/name; paths are relative to the root of the tree."""

    def __init__(self, root: Path, slug: str, url: str, *, private: bool = True) -> None:
        self.slug, self.url, self.private = slug, url, private
        self.owner, self.name = slug.split("/")
        self.path = root / f"{slug}.git"
        self.changed: Callable[[Repository], None] = lambda _repository: None
        """Called after every change of its branches."""

    def create(self, default_branch: str = "main") -> None:
        self.path.mkdir(parents=True)
        git("init", "--bare", "--quiet", "--template=", f"--initial-branch={default_branch}", ".", cwd=self.path)
        with (self.path / "config").open("a") as config:
            config.write("[http]\n\treceivepack = true\n[uploadpack]\n\tallowFilter = true\n")

    @property
    def default_branch(self) -> str:
        return (self.path / "HEAD").read_text().strip().removeprefix("ref: refs/heads/")

    def git(self, *arguments: str, stdin: bytes | None = None, ok: tuple[int, ...] = (0,), **more: str) -> str:
        return git(*arguments, cwd=self.path, stdin=stdin, ok=ok, **more).decode(errors="replace").strip()

    def branches(self) -> dict[str, str]:
        return self._refs("heads")

    def tags(self) -> dict[str, str]:
        return self._refs("tags")

    def _refs(self, kind: str) -> dict[str, str]:
        """Return the references by name, sorted, like `git for-each-ref`. Starts no process, because tests call this often."""
        found, loose, packed = {}, self.path / "refs" / kind, self.path / "packed-refs"
        for line in packed.read_text().splitlines() if packed.exists() else ():
            commit, _, name = line.partition(" ")
            if name.startswith(f"refs/{kind}/"):
                found[name.removeprefix(f"refs/{kind}/")] = commit
        for path in loose.rglob("*"):
            if path.is_file() and path.suffix != ".lock":
                with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                    found[str(path.relative_to(loose))] = path.read_text().strip()
        return dict(sorted(found.items()))

    def head(self, branch: str) -> str | None:
        return self.branches().get(branch)

    def resolve(self, revision: str) -> str | None:
        """Return the commit of a branch, tag or hash, or None if it does not exist."""
        branches = self.branches()
        if revision in branches or not branches:
            return branches.get(revision)
        for name in (f"refs/tags/{revision}", revision):
            if found := self.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", ok=(0, 1, 128)):
                return found
        return None

    def log(self, revision: str) -> list[str]:
        """Return the subjects of the commits, newest first."""
        return self.git("log", "--format=%s", revision, "--").splitlines()

    def messages(self, revision: str) -> list[str]:
        return [text.strip() for text in self.git("log", "--format=%B%x00", revision, "--").split("\0") if text.strip()]

    def files(self, revision: str) -> list[str]:
        return (
            git("ls-tree", "-r", "-z", "--name-only", revision, cwd=self.path).decode(errors="replace").split("\0")[:-1]
        )

    def read(self, revision: str, path: str) -> bytes:
        return git("cat-file", "blob", f"{revision}:{path}", cwd=self.path)

    def is_ancestor(self, ancestor: str, revision: str) -> bool:
        try:
            self.git("merge-base", "--is-ancestor", ancestor, revision)
        except GitError:
            return False
        return True

    def commit(
        self,
        files: Files,
        message: str = "chore: by somebody else",
        *,
        branch: str | None = None,
        start: str | None = None,
    ) -> str:
        """Commit to the branch, as if another user had pushed. A new branch starts at `start` or at the default branch."""
        branch = branch or self.default_branch
        parent = self.head(branch) or self.resolve(start or self.default_branch)
        # one process instead of one for each file, tree and commit
        made = git(
            "fast-import", "--quiet", "--date-format=now", cwd=self.path, stdin=_stream(branch, parent, message, files)
        )
        self.changed(self)
        return made.decode().strip()

    def set_branch(self, branch: str, commit: str) -> None:
        self.git("update-ref", f"refs/heads/{branch}", commit)
        self.changed(self)

    def delete_branch(self, branch: str) -> None:
        self.git("update-ref", "-d", f"refs/heads/{branch}")
        self.changed(self)

    def reject(self, message: str) -> None:
        """Reject every push from now on, with this message."""
        hook = self.path / "hooks" / "pre-receive"
        hook.parent.mkdir(exist_ok=True)
        (self.path / "refusal").write_text(message + "\n")
        hook.write_text('#!/bin/sh\ncat >/dev/null\ncat "$GIT_DIR/refusal" >&2\nexit 1\n')
        hook.chmod(0o755)

    def accept(self) -> None:
        """Accept pushes again. Idempotent."""
        (self.path / "hooks" / "pre-receive").unlink(missing_ok=True)

    def protect(self, branch: str, message: str = "GH006: Protected branch update failed.") -> None:
        """Reject every push to this branch."""
        hook = self.path / "hooks" / "update"
        hook.parent.mkdir(exist_ok=True)
        (self.path / "protected").write_text(f"refs/heads/{branch}\n")
        (self.path / "refusal").write_text(message + "\n")
        script = '#!/bin/sh\nif [ "$1" = "$(cat "$GIT_DIR/protected")" ]; then cat "$GIT_DIR/refusal" >&2; exit 1; fi\n'
        hook.write_text(script)
        hook.chmod(0o755)

    def merge(self, base: str, head: str, *, method: str, title: str, message: str = "") -> str:
        """Merge like a forge: add one or more commits to `base`. Raises GitError on conflicts."""
        made = self.merged(base, head, method=method, title=title, message=message)
        self.set_branch(base, made)
        return made

    def merged(self, base: str, head: str, *, method: str, title: str, message: str = "") -> str:
        """Create the commit that `merge` would put on `base`, without changing a branch."""
        ours, theirs = self.resolve(base), self.resolve(head)
        assert ours and theirs, "both branches must exist"
        with tempfile.TemporaryDirectory(prefix="merge-", dir=self.path.parent) as folder:
            work = Path(folder) / "work"
            git("clone", "--quiet", "--shared", "--no-checkout", str(self.path), str(work), cwd=self.path)
            text = f"{title}\n\n{message}".strip()
            git("checkout", "--quiet", "--detach", theirs if method == "rebase" else ours, cwd=work)
            if method == "rebase":
                git("rebase", "--quiet", "--no-ff", ours, cwd=work)
            elif method == "squash":
                git("merge", "--quiet", "--squash", theirs, cwd=work)
                git("commit", "--quiet", "--allow-empty", "-m", text, cwd=work)
            else:
                git("merge", "--quiet", "--no-ff", "-m", text, theirs, cwd=work)
            made = git("rev-parse", "HEAD", cwd=work).decode().strip()
            git("push", "--quiet", str(self.path), f"HEAD:refs/merges/{made}", cwd=work)
        self.git("update-ref", "-d", f"refs/merges/{made}")
        return made

    def merges_cleanly(self, base: str, head: str) -> bool:
        done = self.git("merge-tree", "--write-tree", "--name-only", base, head, ok=(0, 1))
        return "\n" not in done

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
