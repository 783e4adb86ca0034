"""The sample project: a small repository created by the platform, and tasks that the demo agent can do in it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Project
from sandyard.platform.domain.projects.model import AgentSettings, ProjectSettings, VerifySettings
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.repositories.git_process import Git
from sandyard.platform.domain.users.model import Principal

PROJECT_NAME, BRANCH = "Sample", "main"
SOURCE_FOLDER = Path(__file__).parent / "sample-repository"
_MESSAGE = b"feat: small functions for text\n"
_COMMITTER = b"Sandyard <sandyard@localhost> 1767225600 +0000"  # constant, so that the commit id is too
_SETTINGS = ProjectSettings(
    agent=AgentSettings(default="demo"), verify=VerifySettings(command="python3 -m unittest", timeout_seconds=120)
)


@dataclass(frozen=True, slots=True)
class SampleTask:
    """A task for the demo agent: prose for people, and instructions, one per line."""

    title: str
    description: str


TASKS = (
    SampleTask(
        "Count words, not gaps",
        """\
`word_count("two  words")` returns 3: it counts the empty string between two spaces as a word.

plan: Reproduce it; Write a test; Fix it; Run the tests; Commit
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
`shorten` returns texts longer than the given width: it does not count the ellipsis.

plan: Write a test; Fix it; Run the tests; Commit
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
The agent asks for the motto and waits for an answer.

ask: What is the motto?
append README.md: \\n> {answer}
commit: docs: give the readme a motto
""",
    ),
    SampleTask(
        "Accept underscores in slugs",
        """\
The first try is wrong on purpose: the verify command fails, the agent gets its output and fixes its work.

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
    """A user's sample project, and whether it was created just now."""

    project: Project
    created: bool


class Samples:
    """One sample project per user, in its own bare repository below `folder`, so that it contains nobody else's work."""

    def __init__(self, database: Database, projects: Projects, git: Git, folder: Path) -> None:
        self._database = database
        self._projects = projects
        self._git = git
        self._folder = folder
        self._creation_lock = asyncio.Lock()

    async def ensure(self, caller: Principal) -> Sample:
        """Return the caller's sample project. Creates it, or restores it from the archive, if needed.

        Idempotent; an interrupted creation is restarted. Raises GitFailedError if Git is not installed.
        """
        repository = self._folder.absolute() / f"{caller.user_id}.git"
        async with self._creation_lock:
            if (project := await self._find_project(caller, repository)) is None:
                await self._create_repository(repository)
                project = await self._projects.create(
                    caller,
                    PROJECT_NAME,
                    repository=str(repository),
                    base_branch=BRANCH,
                    settings=_SETTINGS,
                    trusted=True,
                )
                return Sample(project, created=True)
            if project.archived_at is not None:
                project = await self._projects.update(caller, project.id, archived=False)
            return Sample(project, created=False)

    async def _find_project(self, caller: Principal, repository: Path) -> Project | None:
        query = select(Project).where(Project.owner_id == caller.user_id, Project.repository == str(repository))
        async with self._database.reading() as session:
            found: Project | None = await session.scalar(query.order_by(Project.id).limit(1))
            return found

    async def _create_repository(self, repository: Path) -> None:
        """Create the repository with one commit, atomically."""
        temporary = repository.with_suffix(".new")
        for leftover in (repository, temporary):
            await asyncio.to_thread(shutil.rmtree, leftover, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        init = ("init", "--quiet", "--bare", "--template=", f"--initial-branch={BRANCH}")
        await self._git.run(*init, str(temporary), cwd=self._folder)
        commit = await asyncio.to_thread(lambda: b"".join(_generate_commit()))
        await self._git.run(f"--git-dir={temporary}", "fast-import", "--quiet", cwd=temporary, stdin=commit)
        temporary.rename(repository)


def _generate_commit() -> Iterator[bytes]:
    """Yield the commit in the format of `git fast-import`."""
    yield b"commit refs/heads/%s\ncommitter %s\n" % (BRANCH.encode(), _COMMITTER)
    yield b"data %d\n%s" % (len(_MESSAGE), _MESSAGE)
    for file in sorted(SOURCE_FOLDER.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            content = file.read_bytes()
            yield b"M 100644 inline %s\n" % file.relative_to(SOURCE_FOLDER).as_posix().encode()
            yield b"data %d\n%s\n" % (len(content), content)
