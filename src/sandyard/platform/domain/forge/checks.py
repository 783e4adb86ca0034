"""Which checks were run in a sandbox and how they ended, for the body of a pull request.

Only the name of a known tool is shown, because a command line may contain anything, including secrets. And only if its exit code is that of
the check: `pytest | tail` exits like tail, and `pytest || true` always succeeds.
"""

from __future__ import annotations

import re

from sqlalchemy import select

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Command
from sandyard.platform.domain.forge.describe import Check
from sandyard.platform.domain.sandboxes.model import CommandStatus

LOOKED_AT, SHOWN = 500, 10
_REDIRECTED = re.compile(r"\s[012&]?>{1,2}\s?(&[12]|[\w./-]+)")
_UNCERTAIN = re.compile(r"[|;\n\r`$()!<>\\'\"]|(?<!&)&(?!&)|\s--?(version|help|collect-only|co|dry-run)\b")
_CHECK = re.compile(
    r"\s*(?:[A-Za-z_]\w*=\S*\s+)*"  # variables
    r"(?:python3? -m |uv run |poetry run |pdm run |npx |\.venv/bin/|\./node_modules/\.bin/|\./)?"
    r"(?P<name>"
    r"pytest|tox|nox|mypy|pyright|ruff check|eslint|tsc|vitest run|jest|phpunit|rspec|ctest|shellcheck|golangci-lint run"
    r"|(?:npm|pnpm|yarn)(?: run)? (?:test|lint|build|typecheck|check)"
    r"|(?:cargo|go|mvn|gradle|dotnet|swift|mix|deno|bun) (?:test|check|clippy|vet|build|verify)"
    r"|make (?:test|check|lint|build|verify)"
    r")(?:\s.*)?"
)


async def run_in(database: Database, sandbox_id: str) -> list[Check]:
    """Return the last result of each check, in the order they were last run."""
    query = select(Command.command, Command.exit_code)
    query = query.where(Command.sandbox_id == sandbox_id, Command.status == CommandStatus.EXITED)
    async with database.reading() as session:
        rows = (await session.execute(query.order_by(Command.id.desc()).limit(LOOKED_AT))).all()
    found: dict[str, Check] = {}
    for line, exit_code in rows:
        check = outcome(line, exit_code) if exit_code is not None else None
        if check is not None:
            found.setdefault(check.name, check)
    return list(reversed(list(found.values())))[-SHOWN:]


def outcome(line: str, exit_code: int) -> Check | None:
    """Return what this exit code says about checks. For a failed chain, the failing part is known only if all parts are checks."""
    plain = _REDIRECTED.sub("", line.strip())
    if _UNCERTAIN.search(plain):
        return None
    parts = [_CHECK.fullmatch(part) for part in plain.split("&&")]
    names = [part["name"] for part in parts if part is not None]
    if not names or (exit_code != 0 and len(names) < len(parts)):
        return None
    return Check(" and ".join(dict.fromkeys(names)), exit_code)
