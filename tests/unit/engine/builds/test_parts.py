"""The parts of building that need no sandbox: steps as they are written, logs, and uploaded files."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandyard.engine.builds import files, steps
from sandyard.engine.builds.base import own_image
from sandyard.engine.builds.cache import base_key, step_key
from sandyard.engine.builds.files import Archives, TooLargeError
from sandyard.engine.builds.logs import Lines
from sandyard.engine.builds.model import Kind, State, Step
from sandyard.engine.builds.registry import CombinedTemplates
from sandyard.engine.builds.service import checked_tag
from sandyard.engine.sandboxes.model import Template
from sandyard.engine.store.database import Database
from sandyard.kit.errors import ForbiddenError, InvalidInputError, NoSpaceError

HASH = "ab" * 32
ARCHIVE = b"\x1f\x8b" + b"x" * 1000


def test_a_template_that_yields_comes_after_a_clients_own() -> None:
    base, desktop = Template("b", ()), Template("d", (), yields=True)
    own: dict[str, Template] = {"base": Template("mine", ()), "desktop": Template("mine", ())}
    machine = SimpleNamespace(resolve={"base": base, "desktop": desktop}.get)
    names = CombinedTemplates(machine, SimpleNamespace(resolve=own.get))  # type: ignore[arg-type]
    assert names.resolve("base") is base
    assert names.resolve("desktop") is own["desktop"]
    own.clear()
    assert names.resolve("desktop") is desktop
    assert names.resolve("other") is None


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("folder/*", "folder"),
        ("*.txt", "."),
        ("src/**/*.{ts,tsx}", "src"),
        ("a/b/c.txt", "a/b/c.txt"),
        ("./a/", "a"),
        (".", "."),
        ("a/x?.txt", "a"),
        ("a/[ab].txt", "a"),
    ],
)
def test_what_a_pattern_copies_from(path: str, part: str) -> None:
    assert steps._source(path) == part


async def test_answers_of_a_talkative_sandbox_are_bounded() -> None:
    """A shell's profile is the image's own: it may write without end where a script of ours answers."""

    class Talking:
        async def run(self, command: str, *, output: Callable[[str, bytes], None], **_: object) -> int:
            for _ in range(1000):
                output("stdout", b"y\n" * 100)
            return 0

    executor = steps.Executor(None, None)  # type: ignore[arg-type]
    bench = SimpleNamespace(agent=Talking())
    code, said = await executor._ask(bench, "true", State(), "", "1")  # type: ignore[arg-type]
    assert code == 0
    assert len(said) < 2 * steps.ANSWER_LINES


@pytest.mark.parametrize(
    "step",
    [
        Step(Kind.RUN),
        Step(Kind.ENV, ("A",)),
        Step(Kind.ENV, ("A", "1", "B")),
        Step(Kind.ENV, ("A B", "1")),
        Step(Kind.WORKDIR),
        Step(Kind.RUN, ("a\0b",)),
        Step(Kind.COPY, ("a", "b")),
        Step(Kind.COPY, ("a", "b"), "../../etc/passwd"),
        Step(Kind.COPY, ("a",), HASH),
    ],
)
def test_steps_that_make_no_sense(step: Step) -> None:
    with pytest.raises(InvalidInputError):
        steps.check(step)


def test_a_key_covers_everything() -> None:
    base = base_key(("l1", "l0"), State({"A": "1"}))
    keys = {
        base,
        base_key(("l0", "l1"), State({"A": "1"})),
        base_key(("l1", "l0"), State({"A": "2"})),
        base_key(("l1", "l0"), State({"A": "1"}, user="root")),
        base_key(("l1", "l0"), State({"A": "1"}), "sha256:1"),
        step_key(base, Step(Kind.RUN, ("a", "b"))),
        step_key(base, Step(Kind.RUN, ("a b",))),
        step_key(base, Step(Kind.USER, ("a b",))),
        step_key(base, Step(Kind.COPY, ("a", "b"), HASH)),
        step_key(base, Step(Kind.COPY, ("a", "b"), "cd" * 32)),
    }
    assert len(keys) == 10
    assert step_key(base, Step(Kind.RUN, ("a",), force=True)) == step_key(base, Step(Kind.RUN, ("a",)))


@pytest.mark.parametrize(
    ("image", "template"),
    [
        ("e2bdev/base", "base"),
        ("e2bdev/base:latest", "base"),
        ("docker.io/e2bdev/base@sha256:00", "base"),
        ("index.docker.io/e2bdev/code-interpreter:1", "code-interpreter-v1"),
        ("ghcr.io/e2bdev/base", None),
        ("e2bdev/base-more", None),
        ("python:3.12", None),
    ],
)
def test_images_that_are_templates_here(image: str, template: str | None) -> None:
    assert own_image(image) == template


def test_lines() -> None:
    lines = Lines()
    assert lines.feed(b"one\ntw") == ["one"]
    assert lines.feed(b"o\r\n 10%\r 20%\r") == ["two"]
    assert lines.feed(b"\n\xff\n") == [" 20%", "\ufffd"]
    assert lines.feed(b"rest") == []
    assert lines.end() == ["rest"]
    assert lines.end() == []
    assert len(lines.feed(b"x" * 100_000)) == 1


def test_tags_are_checked() -> None:
    assert checked_tag(" V1.0 ", "one") == "v1.0"
    assert checked_tag("one:stable", "one") == "stable"
    for wrong in ("", "two:stable", "a b", "a" * 129, "-a", "one:"):
        with pytest.raises(InvalidInputError):
            checked_tag(wrong, "one")


@pytest.fixture
def archives(tmp_path: Path) -> Archives:
    database = Database(tmp_path / "engine.db")
    database.open()
    made = Archives(tmp_path / "uploads", database, limit_mb=1, kept_mb=0, reserve_mb=0)
    made.open()
    return made


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def broken() -> AsyncIterator[bytes]:
    yield ARCHIVE
    raise InvalidInputError("The upload was interrupted.")


class TestUploads:
    async def test_an_upload_is_there_completely(self, archives: Archives) -> None:
        await archives.receive(HASH, pieces(ARCHIVE[:10], ARCHIVE[10:]), len(ARCHIVE))
        assert archives.has(HASH)
        assert b"".join([piece async for piece in archives.read(HASH)]) == ARCHIVE
        await archives.receive(HASH, pieces(ARCHIVE + b"more"), None)
        assert b"".join([piece async for piece in archives.read(HASH)]) == ARCHIVE + b"more"

    @pytest.mark.parametrize("announced", [None, 5000])
    async def test_or_not_at_all(self, archives: Archives, tmp_path: Path, announced: int | None) -> None:
        for body in (broken(), pieces(ARCHIVE) if announced else pieces(b"no archive"), pieces()):
            with pytest.raises(InvalidInputError):
                await archives.receive(HASH, body, announced)
        with pytest.raises(TooLargeError):
            await archives.receive(HASH, pieces(b"\x1f\x8b", *[b"x" * 65536] * 17), announced)
        with pytest.raises(TooLargeError):
            await archives.receive(HASH, pieces(), 2 << 20)
        assert not archives.has(HASH)
        assert list((tmp_path / "uploads").iterdir()) == []

    async def test_the_engine_keeps_its_reserve(self, archives: Archives, tmp_path: Path) -> None:
        archives._reserve = 1 << 60
        with pytest.raises(NoSpaceError, match="disk_reserve_mb"):
            await archives.receive(HASH, pieces(ARCHIVE), len(ARCHIVE))
        assert list((tmp_path / "uploads").iterdir()) == []

    def test_a_crash_leaves_nothing_half_written(self, archives: Archives, tmp_path: Path) -> None:
        (tmp_path / "uploads" / f"{HASH}-abc.part").write_bytes(b"half")
        archives.open()
        assert list((tmp_path / "uploads").iterdir()) == []

    def test_a_link_is_for_one_hash_and_an_hour(self, archives: Archives, monkeypatch: pytest.MonkeyPatch) -> None:
        token = archives.token(HASH)
        archives.check(HASH, token)
        until, _, signature = token.partition("-")
        odd = (f"²-{signature}", f"{until}-é", f"{'9' * 5000}-{signature}")
        for wrong in ("", "x", token[:-1], f"{int(until) + 1}-{signature}", f"-{signature}", *odd):
            with pytest.raises(ForbiddenError):
                archives.check(HASH, wrong)
        with pytest.raises(ForbiddenError):
            archives.check("cd" * 32, token)
        now = time.time()
        monkeypatch.setattr(files.time, "time", lambda: now + 3700)
        with pytest.raises(ForbiddenError, match="expired"):
            archives.check(HASH, token)

    async def test_old_files_go(self, archives: Archives, tmp_path: Path) -> None:
        for files_hash in (HASH, "cd" * 32):
            await archives.receive(files_hash, pieces(ARCHIVE), None)
        long_ago = time.time() - 100_000
        os.utime(tmp_path / "uploads" / HASH, (long_ago, long_ago))
        archives.shrink()
        assert not archives.has(HASH)
        assert archives.has("cd" * 32), "a build that is yet to start may need it"

    def test_names_lead_nowhere_else(self, archives: Archives) -> None:
        for wrong in ("../engine.db", "AB" * 32, "a", ""):
            with pytest.raises(InvalidInputError):
                archives.has(wrong)
