"""The parts of template builds that need no sandbox: step definitions, logs and uploaded files."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandyard.engine.builds import files, steps
from sandyard.engine.builds.base import find_replacement_template
from sandyard.engine.builds.cache import compute_base_key, compute_step_key
from sandyard.engine.builds.files import Archives, TooLargeError
from sandyard.engine.builds.logs import LineSplitter
from sandyard.engine.builds.model import State, Step, StepKind
from sandyard.engine.builds.registry import CombinedTemplates
from sandyard.engine.builds.service import validate_tag
from sandyard.engine.sandboxes.model import Template
from sandyard.engine.store.database import Database
from sandyard.kit.errors import ForbiddenError, InvalidInputError, NoSpaceError

HASH = "ab" * 32
ARCHIVE = b"\x1f\x8b" + b"x" * 1000


def test_a_template_that_yields_is_overridden_by_a_clients_own_template() -> None:
    base, desktop = Template("b", ()), Template("d", (), can_be_overridden=True)
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
def test_the_source_of_a_copy_pattern_ends_before_the_first_wildcard(path: str, part: str) -> None:
    assert steps.get_copy_source(path) == part


async def test_the_output_of_a_helper_command_is_bounded() -> None:
    """The shell profile comes from the image and may print endlessly before our script's output."""

    class NoisyAgent:
        async def run(self, command: str, *, output: Callable[[str, bytes], None], **_: object) -> int:
            for _ in range(1000):
                output("stdout", b"y\n" * 100)
            return 0

    executor = steps.Executor(None, None)  # type: ignore[arg-type]
    build = SimpleNamespace(agent=NoisyAgent())
    code, output_lines = await executor.run_script(build, "true", State(), "", "1")  # type: ignore[arg-type]
    assert code == 0
    assert len(output_lines) < 2 * steps.SCRIPT_OUTPUT_LINES


@pytest.mark.parametrize(
    "step",
    [
        Step(StepKind.RUN),
        Step(StepKind.ENV, ("A",)),
        Step(StepKind.ENV, ("A", "1", "B")),
        Step(StepKind.ENV, ("A B", "1")),
        Step(StepKind.WORKDIR),
        Step(StepKind.RUN, ("a\0b",)),
        Step(StepKind.COPY, ("a", "b")),
        Step(StepKind.COPY, ("a", "b"), "../../etc/passwd"),
        Step(StepKind.COPY, ("a",), HASH),
    ],
)
def test_invalid_steps_are_rejected(step: Step) -> None:
    with pytest.raises(InvalidInputError):
        steps.validate_step(step)


def test_a_cache_key_depends_on_every_input() -> None:
    base = compute_base_key(("l1", "l0"), State({"A": "1"}))
    keys = {
        base,
        compute_base_key(("l0", "l1"), State({"A": "1"})),
        compute_base_key(("l1", "l0"), State({"A": "2"})),
        compute_base_key(("l1", "l0"), State({"A": "1"}, user="root")),
        compute_base_key(("l1", "l0"), State({"A": "1"}), "sha256:1"),
        compute_step_key(base, Step(StepKind.RUN, ("a", "b"))),
        compute_step_key(base, Step(StepKind.RUN, ("a b",))),
        compute_step_key(base, Step(StepKind.USER, ("a b",))),
        compute_step_key(base, Step(StepKind.COPY, ("a", "b"), HASH)),
        compute_step_key(base, Step(StepKind.COPY, ("a", "b"), "cd" * 32)),
    }
    assert len(keys) == 10
    assert compute_step_key(base, Step(StepKind.RUN, ("a",), force=True)) == compute_step_key(
        base, Step(StepKind.RUN, ("a",))
    )


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
def test_e2b_images_are_mapped_to_local_templates(image: str, template: str | None) -> None:
    assert find_replacement_template(image) == template


def test_output_is_split_into_lines() -> None:
    lines = LineSplitter()
    assert lines.feed(b"one\ntw") == ["one"]
    assert lines.feed(b"o\r\n 10%\r 20%\r") == ["two"]
    assert lines.feed(b"\n\xff\n") == [" 20%", "\ufffd"]
    assert lines.feed(b"rest") == []
    assert lines.end() == ["rest"]
    assert lines.end() == []
    assert len(lines.feed(b"x" * 100_000)) == 1


def test_tags_are_normalized_and_invalid_tags_are_rejected() -> None:
    assert validate_tag(" V1.0 ", "one") == "v1.0"
    assert validate_tag("one:stable", "one") == "stable"
    for wrong in ("", "two:stable", "a b", "a" * 129, "-a", "one:"):
        with pytest.raises(InvalidInputError):
            validate_tag(wrong, "one")


@pytest.fixture
def archives(tmp_path: Path) -> Archives:
    database = Database(tmp_path / "engine.db")
    database.open()
    archives = Archives(tmp_path / "uploads", database, limit_mb=1, kept_mb=0, reserve_mb=0)
    archives.open()
    return archives


async def stream_chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def interrupted_upload() -> AsyncIterator[bytes]:
    yield ARCHIVE
    raise InvalidInputError("The upload was interrupted.")


class TestUploads:
    async def test_a_complete_upload_is_stored_and_can_be_replaced(self, archives: Archives) -> None:
        await archives.receive(HASH, stream_chunks(ARCHIVE[:10], ARCHIVE[10:]), len(ARCHIVE))
        assert archives.has(HASH)
        assert b"".join([piece async for piece in archives.read(HASH)]) == ARCHIVE
        await archives.receive(HASH, stream_chunks(ARCHIVE + b"more"), None)
        assert b"".join([piece async for piece in archives.read(HASH)]) == ARCHIVE + b"more"

    @pytest.mark.parametrize("announced", [None, 5000])
    async def test_a_failed_upload_leaves_nothing_behind(
        self, archives: Archives, tmp_path: Path, announced: int | None
    ) -> None:
        for body in (
            interrupted_upload(),
            stream_chunks(ARCHIVE) if announced else stream_chunks(b"no archive"),
            stream_chunks(),
        ):
            with pytest.raises(InvalidInputError):
                await archives.receive(HASH, body, announced)
        with pytest.raises(TooLargeError):
            await archives.receive(HASH, stream_chunks(b"\x1f\x8b", *[b"x" * 65536] * 17), announced)
        with pytest.raises(TooLargeError):
            await archives.receive(HASH, stream_chunks(), 2 << 20)
        assert not archives.has(HASH)
        assert list((tmp_path / "uploads").iterdir()) == []

    async def test_an_upload_is_rejected_when_it_would_use_the_disk_reserve(self, tmp_path: Path) -> None:
        database = Database(tmp_path / "other.db")
        database.open()
        archives = Archives(tmp_path / "uploads", database, limit_mb=1, kept_mb=0, reserve_mb=1 << 40)
        archives.open()
        with pytest.raises(NoSpaceError, match="disk_reserve_mb"):
            await archives.receive(HASH, stream_chunks(ARCHIVE), len(ARCHIVE))
        assert list((tmp_path / "uploads").iterdir()) == []
        database.close()

    def test_partial_uploads_are_removed_on_open(self, archives: Archives, tmp_path: Path) -> None:
        (tmp_path / "uploads" / f"{HASH}-abc.part").write_bytes(b"half")
        archives.open()
        assert list((tmp_path / "uploads").iterdir()) == []

    def test_an_upload_token_is_valid_for_one_hash_and_one_hour(
        self, archives: Archives, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = archives.create_token(HASH)
        archives.check_token(HASH, token)
        until, _, signature = token.partition("-")
        odd = (f"²-{signature}", f"{until}-é", f"{'9' * 5000}-{signature}")
        for wrong in ("", "x", token[:-1], f"{int(until) + 1}-{signature}", f"-{signature}", *odd):
            with pytest.raises(ForbiddenError):
                archives.check_token(HASH, wrong)
        with pytest.raises(ForbiddenError):
            archives.check_token("cd" * 32, token)
        now = time.time()
        monkeypatch.setattr(files.time, "time", lambda: now + 3700)
        with pytest.raises(ForbiddenError, match="expired"):
            archives.check_token(HASH, token)

    async def test_old_archives_are_removed_when_the_store_is_over_its_limit(
        self, archives: Archives, tmp_path: Path
    ) -> None:
        for files_hash in (HASH, "cd" * 32):
            await archives.receive(files_hash, stream_chunks(ARCHIVE), None)
        long_ago = time.time() - 100_000
        os.utime(tmp_path / "uploads" / HASH, (long_ago, long_ago))
        archives.shrink()
        assert not archives.has(HASH)
        assert archives.has("cd" * 32), "a recent archive must be kept: a build that has not started yet may need it"

    def test_names_that_are_not_hashes_are_rejected(self, archives: Archives) -> None:
        for wrong in ("../engine.db", "AB" * 32, "a", ""):
            with pytest.raises(InvalidInputError):
                archives.has(wrong)
