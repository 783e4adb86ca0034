"""The protocol between the platform and the relay, and the source of the relay."""

from __future__ import annotations

import ast
import base64
import builtins
import math
import os
import symtable
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandyard.platform.domain.sandboxes.e2b import CommandEnded, CommandSpec, EndReason, guest_sources
from sandyard.platform.domain.sandboxes.e2b.guest.relay import journal as guest_journal
from sandyard.platform.domain.sandboxes.e2b.guest.relay import output
from sandyard.platform.domain.sandboxes.e2b.relay import Frame, get_journal_path

GUEST = Path(guest_sources.__file__).with_name("guest")


@pytest.mark.parametrize("line", ["", ":", "noise", ":z 1", ":1", " :1 0 AAAA", "::1", ":startled"])
def test_ignores_invalid_frames(line: str) -> None:
    frame = Frame.parse(line)
    assert frame is None or frame.rest == ""


def test_parses_frames() -> None:
    body = base64.b64encode(b"\x00\xff\n").decode()
    frame = Frame.parse(f":2 4711 {body}")
    assert frame is not None
    assert (frame.kind, frame.chunk) == ("2", (4711, b"\x00\xff\n"))
    refusal = Frame.parse(f":f cwd {base64.b64encode('ä b'.encode()).decode()}")
    assert refusal is not None
    assert refusal.refusal == ("cwd", "ä b")


def test_parses_journal_growth() -> None:
    frame = Frame.parse(":b 2 4711 1")
    assert frame is not None
    assert frame.grown == ("2", 4711, 1)
    assert get_journal_path("cmd_1", "2", 1) == "/dev/shm/.sandyard/commands/cmd_1/err"
    assert get_journal_path("cmd_1", "1", 0) == f"{guest_journal.list_journal_folders('cmd_1')[0]}/out"


@pytest.mark.parametrize(
    "rest",
    ["", "1", "1 5", "3 5 0", "1 5 2", "1 -1 0", "1 5 -1", "1 99999999999999999 0", "1 5 0 /etc/passwd", "1 x 0"],
)
def test_rejects_invalid_journal_growth(rest: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        assert Frame("b", rest).grown


class Journal:
    """The relay's side of one output, fed without a process."""

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.stream = output.Stream(1, "out", str(folder), limit)
        self.path = folder / "out"
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data
        while data:
            data = data[os.write(self.stream.child_end, data[: output.PIPE_SIZE // 4]) :]
            self.stream.read()

    def frames(self, now: float) -> Iterator[Frame]:
        while (line := self.stream.next_line(now)) is not None:
            frame = Frame.parse(line)
            assert frame is not None
            yield frame


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path)
    yield journal
    for fd in (journal.stream.child_end, journal.stream.pipe, journal.stream.file):
        os.close(fd)


LIMIT, INTERVAL = output.LIVE_LIMIT, output.LIVE_INTERVAL


def test_sends_small_output_inline(journal: Journal) -> None:
    for now in (1.0, 1.0, 1.001):
        journal.write(b"little\n")
        (frame,) = journal.frames(now)
        assert frame.chunk == (len(journal.written) - 7, b"little\n")


def test_announces_large_output(journal: Journal) -> None:
    journal.write(b"begin")
    (frame,) = journal.frames(1.0)
    journal.write(b"x" * 3 * LIMIT)
    live = list(journal.frames(1.0))
    assert {frame.kind for frame in live} == {"1"}
    assert sum(len(frame.chunk[1]) for frame in live) < LIMIT + output.CHUNK
    assert journal.stream.is_held(1.0)
    (frame,) = journal.frames(1.0 + INTERVAL)
    assert frame.grown == ("1", len(journal.written), 1)
    journal.write(b"end")
    assert not list(journal.frames(1.0 + INTERVAL)), "readers are not notified more often"
    (frame,) = journal.frames(1.0 + 2 * INTERVAL)
    assert frame.chunk == (len(journal.written) - 3, b"end")
    journal.write(b"y" * 2 * LIMIT)
    assert [frame.kind for frame in journal.frames(math.inf)] == ["b"], "nothing is delayed at the end"


def test_sends_output_inline_if_journal_was_removed(journal: Journal) -> None:
    journal.write(b"x" * 2 * LIMIT)
    journal.path.unlink()
    journal.path.write_bytes(b"not ours")
    chunks = [frame.chunk for frame in journal.frames(math.inf)]
    assert b"".join(data for _, data in chunks) == journal.written


def test_sends_output_beyond_disk_limit_after_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path, limit=2 * LIMIT)
    journal.write(b"x" * 2 * LIMIT)
    journal.write(b"y" * 100)
    first, second = journal.frames(1.0)
    assert first.grown == ("1", 2 * LIMIT, 1)
    assert second.chunk == (2 * LIMIT, b"y" * 100)


def test_parses_result() -> None:
    text = '{"reason":"exited","code":3,"signal":null,"ms":1500,"out":10,"out_kept":5,"err":0,"err_kept":0}'
    assert CommandEnded.parse(text) == CommandEnded(EndReason.EXITED, 3, None, 1.5, 10, 0)
    assert CommandEnded.parse('{"reason":"not_started"}') == CommandEnded(EndReason.NOT_STARTED)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"reason":"won"}', '{"code":0}', '{"reason":"exited","code":"zero"}']
)
def test_ignores_tampered_result(text: str) -> None:
    assert CommandEnded.parse(text) == CommandEnded(EndReason.LOST)


def test_encodes_every_character_of_specification() -> None:
    spec = CommandSpec("cmd_1", "a\n'b' 🙂", cwd="/x y", envs={"A": "1=2", "B": ""}, timeout_s=1.5)
    assert spec.encode().decode().split("\0") == ["cmd_1", "a\n'b' 🙂", "/x y", "1.5", "A=1=2", "B="]


def test_relay_supports_old_python_and_imports_little() -> None:
    tree = ast.parse(guest_sources.join_relay_modules(), feature_version=(3, 6))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= {"_signal", "binascii", "errno", "fcntl", "os", "select", "signal", "sys", "time"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def test_relay_modules_can_be_joined() -> None:
    files = {path.stem: ast.parse(path.read_text()) for path in (GUEST / "relay").glob("*.py")}
    assert {*files} == {*guest_sources.RELAY_MODULES, "__init__"}
    loaded: set[str] = set()
    for name in guest_sources.RELAY_MODULES:
        for node in files[name].body:
            if isinstance(node, ast.ImportFrom):
                assert node.module is not None
                assert node.module.rpartition(".")[2] in loaded, "a module may import only earlier modules of the relay"
                assert all(alias.asname is None for alias in node.names)
        loaded.add(name)
    defined = [name for tree in files.values() for name in definitions(tree)]
    assert len(defined) == len({*defined}), "a name may be defined only once in all modules"


def definitions(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def test_joined_relay_defines_every_name_that_it_uses() -> None:
    source = guest_sources.join_relay_modules()
    table = symtable.symtable(source.decode(), "relay", "exec")
    known = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    assert used_globals(table) <= known | {*dir(builtins), "__name__"}


def used_globals(table: symtable.SymbolTable) -> set[str]:
    own = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module")
    }
    return own.union(*(used_globals(child) for child in table.get_children()))


@pytest.mark.parametrize("name", ["install_relay.py", "install_program.py"])
def test_installers_fit_between_single_quotes(name: str) -> None:
    source = guest_sources.read_script(name)
    ast.parse(source, feature_version=(3, 6))
    assert "'" not in source
    assert "@" not in source
