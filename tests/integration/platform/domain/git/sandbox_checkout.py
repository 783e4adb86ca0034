"""A checkout in a sandbox of a real engine."""

from __future__ import annotations

import os

from sandyard.platform.domain.git.checkout.program_runner import ProgramRunner
from sandyard.platform.domain.git.checkout.sandbox_git import SandboxGit
from sandyard.platform.domain.git.model import CHECKOUT_FOLDER
from sandyard.platform.domain.repositories.model import Bundle
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from tests.integration.platform.domain.repositories.plain import ANN, Repository

ODD_NAMES = [
    b"with space",
    b"tab\there",
    b"new\nline",
    b"-dash",
    b'quo"te',
    "é🙂".encode(),
    b"latin \xe9\xff",
    b"*",
    b":(top)x",
]
TEXT = "".join(f"line {number}\n" for number in range(30))


class SandboxCheckout(SandboxGit):
    """A checkout in a sandbox, and a way to change it as an agent does."""

    def __init__(self, engine: SandboxEngine, engine_id: str, limit: int = 64 << 20) -> None:
        super().__init__(ProgramRunner(engine, engine_id, CHECKOUT_FOLDER), limit=limit)
        self.engine, self.id = engine, engine_id

    async def sh(self, script: str, *arguments: str) -> str:
        ran = await self.engine.programs.run(self.id, ["bash", "-ec", script, "sh", *arguments], cwd=CHECKOUT_FOLDER)
        assert ran.exit_code == 0, ran.stderr
        return os.fsdecode(ran.stdout)

    async def write(self, name: str | bytes, content: str = "x\n") -> None:
        await self.sh('mkdir -p -- "$(dirname -- "$1")"; printf %s "$2" >"$1"', f"./{os.fsdecode(name)}", content)

    async def describe_state(self, *, refs: bool = True) -> str:
        """Describe everything a user could see of the checkout's state."""
        return (await self.sh("git for-each-ref; git stash list") if refs else "") + await self.sh(
            "git status --porcelain=v2 -z --branch -uall | tr '\\0' '\\n'; cat .git/HEAD; "
            "git ls-files -s | sha1sum; find . -path ./.git -prune -o -type f -print0 | sort -z | xargs -0 sha1sum; "
            "find . -path ./.git -prune -o -printf '%M %p %l\\n' | sort"
        )

    async def list_leftovers(self) -> str:
        """List what the platform has left in the sandbox."""
        return await self.sh("ls -A /tmp | grep -v -x .sandyard || true")


async def create_checkout(
    guest: SandboxGit, bundle: Bundle, upstream: Repository, branch: str = "task/1", **options: object
) -> None:
    given = {"commit": upstream.head, "base_branch": "main", "branch": branch, "identity": ANN}
    await guest.checkout(bundle, **{"origin": "https://forge.example/o/r.git", **given, **options})  # type: ignore[arg-type]
