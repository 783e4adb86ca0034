"""A project to try things with: a small repository that the platform makes itself, and tasks the demo agent can do in it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Project
from sandyard.platform.domain.git.host import Git
from sandyard.platform.domain.projects.model import AgentSettings, ProjectSettings, VerifySettings
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.users.model import Principal

NAME, BRANCH = "Sample", "main"
FILES = Path(__file__).parent / "sample-repository"
_MESSAGE = b"feat: small functions for text\n"
_WHO_AND_WHEN = b"Sandyard <sandyard@localhost> 1767225600 +0000"  # always the same: so is the commit
_SETTINGS = ProjectSettings(
    agent=AgentSettings(default="demo"), verify=VerifySettings(command="python3 -m unittest", timeout_seconds=120)
)


@dataclass(frozen=True, slots=True)
class SampleTask:
    """What the demo agent understands: prose for people, and instructions, one a line."""

    title: str
    description: str


TASKS = (
    SampleTask(
        "Count words, not gaps",
        """\
`word_count("two  words")` says 3: where two spaces follow each other, it counts the nothing between them.

plan: See it fail; Write a test; Mend it; Run the tests; Commit
run: python3 -c "from words import word_count; print(word_count('two  words'))"
append tests/test_text.py:
```

    def test_gaps_are_no_words(self) -> None:
        self.assertEqual(word_count("two  words "), 2)
```
replace words/text.py: text.split(" ") -> text.split()
run: python3 -m unittest
commit: fix(text): count words, not the gaps between them
""",
    ),
    SampleTask(
        "Keep to the width",
        """\
`shorten` makes texts that are longer than the width it was given: the ellipsis comes on top.

plan: Write a test; Mend it; Run the tests; Commit
append tests/test_text.py:
```

    def test_the_ellipsis_counts(self) -> None:
        self.assertEqual(shorten("a rather long sentence", 8), "a rathe…")
```
replace words/text.py: text[:width] -> text[: width - 1]
run: python3 -m unittest
commit: fix(text): keep to the width, ellipsis included
""",
    ),
    SampleTask(
        "Give the README a motto",
        """\
The agent asks for the motto, and waits until somebody answers.

ask: What is the motto?
append README.md: \\n> {answer}
commit: docs: give the readme a motto
""",
    ),
    SampleTask(
        "Accept underscores in slugs",
        """\
The first try is wrong on purpose: the project's check fails, its output goes back to the agent, and the agent fixes its work.

append tests/test_text.py:
```

    def test_slugs_keep_underscores(self) -> None:
        self.assertEqual(slug("snake_case, please"), "snake_case-please")
```
fix: replace words/text.py: [a-z0-9]+ -> [a-z0-9_]+
fix: run: python3 -m unittest
fix: commit: fix(text): keep underscores in slugs
""",
    ),
)


@dataclass(frozen=True, slots=True)
class Sample:
    project: Project
    made: bool


class Samples:
    """One for each user, in a bare repository of its own below `folder`. Nobody else's work can be in it."""

    def __init__(self, database: Database, projects: Projects, git: Git, folder: Path) -> None:
        self._database = database
        self._projects = projects
        self._git = git
        self._folder = folder
        self._making = asyncio.Lock()

    async def ensure(self, caller: Principal) -> Sample:
        """The caller's sample project: the one there is, taken out of the archive if need be, or a new one with a fresh
        repository. Idempotent; what was cut short is begun anew. GitFailedError where there is no git."""
        repository = self._folder.absolute() / f"{caller.user_id}.git"
        async with self._making:
            if (known := await self._known(caller, repository)) is None:
                await self._make(repository)
                project = await self._projects.create(
                    caller, NAME, repository=str(repository), base_branch=BRANCH, settings=_SETTINGS, vouched=True
                )
                return Sample(project, made=True)
            if known.archived_at is not None:
                known = await self._projects.update(caller, known.id, archived=False)
            return Sample(known, made=False)

    async def _known(self, caller: Principal, repository: Path) -> Project | None:
        rows = select(Project).where(Project.owner_id == caller.user_id, Project.repository == str(repository))
        async with self._database.reading() as session:
            found: Project | None = await session.scalar(rows.order_by(Project.id).limit(1))
            return found

    async def _make(self, repository: Path) -> None:
        """The repository, with one commit. It is there wholly or not at all."""
        fresh = repository.with_suffix(".new")
        for left in (repository, fresh):
            await asyncio.to_thread(shutil.rmtree, left, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        bare = ("init", "--quiet", "--bare", "--template=", f"--initial-branch={BRANCH}")
        await self._git.run(*bare, str(fresh), cwd=self._folder)
        commit = await asyncio.to_thread(lambda: b"".join(_stream()))
        await self._git.run(f"--git-dir={fresh}", "fast-import", "--quiet", cwd=fresh, stdin=commit)
        fresh.rename(repository)


def _stream() -> Iterator[bytes]:
    """The commit as `git fast-import` reads it."""
    yield b"commit refs/heads/%s\ncommitter %s\n" % (BRANCH.encode(), _WHO_AND_WHEN)
    yield b"data %d\n%s" % (len(_MESSAGE), _MESSAGE)
    for file in sorted(FILES.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            content = file.read_bytes()
            yield b"M 100644 inline %s\n" % file.relative_to(FILES).as_posix().encode()
            yield b"data %d\n%s\n" % (len(content), content)
