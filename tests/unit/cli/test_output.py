"""Tables for people, JSON for programs."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from sandyard.cli.output import echo, escape, escape_line, format_age, format_size, has_hidden_characters, try_echo
from tests.unit.cli.server import Reply, Server

NOW = datetime(2026, 1, 31, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("2026-01-31T10:00:00.500Z", "now"),
        ("2026-01-31T09:59:30Z", "30 s ago"),
        ("2026-01-31T09:30:00Z", "30 min ago"),
        ("2026-01-31T07:00:00Z", "3 h ago"),
        ("2026-01-21T10:00:00Z", "10 d ago"),
        ("yesterday", "yesterday"),
    ],
)
def test_ages_are_formatted(stamp: str, expected: str) -> None:
    assert format_age(stamp, NOW) == expected


def test_control_characters_are_escaped() -> None:
    assert escape(" a\x1b[31mb\nc\t\u202ed\r\n") == "a^[[31mb c <U+202E>d"


HIDDEN = (
    *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0x200B, 0x2010), 0x2060, 0xFEFF, 0x61C, 0xAD, 0x3164, 0xE0100,
    0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2065, 0x2800, *range(0xFE00, 0xFE10), 0xFFA0, 0xFFF0, 0x1BCA0,
    0x1D173, 0xE0FFF, 0xFFF9, 0x13430, *range(0xE0000, 0xE0080), *range(9), *range(0xB, 0xD), *range(0xE, 0x20), *range(0x7F, 0xA0),
)  # fmt: skip


def test_invisible_characters_become_visible(capsys: pytest.CaptureFixture[str]) -> None:
    for code in HIDDEN:
        text = f"rm{chr(code)}x"
        shown = f"rm^{chr(code ^ 0x40)}x" if code < 0x20 or code == 0x7F else f"rm<U+{code:04X}>x"
        assert escape(text) == escape_line(text) == shown, hex(code)
        assert has_hidden_characters(f"a\n{text}\n"), hex(code)
        echo(text)
        assert capsys.readouterr().out == f"{shown}\n", hex(code)


def test_ordinary_text_has_no_hidden_characters() -> None:
    text = "\tdef größe():  # ❤️ ↔️ ‼️ ©️ 🏳️ ▶\ufe0e 1️⃣ 日本語\u3000\u00a0 שלום\r\n"
    assert not has_hidden_characters(text)
    assert escape_line(text.rstrip()) == text.rstrip()


def test_selectors_are_only_part_of_an_emoji_directly_after_it() -> None:
    assert escape_line("❤\ufe0f\ufe0f 1\ufe0f") == "❤\ufe0f<U+FE0F> 1<U+FE0F>"
    assert has_hidden_characters("❤\t\ufe0f")


PAGE = {
    "items": [
        {
            "id": "sbx_00000000000000000001",
            "status": "running",
            "sessionId": None,
            "template": "[red]\x1b[31m",
            "commandCount": 0,
        },
        {
            "id": "sbx_00000000000000000002",
            "status": "paused",
            "sessionId": "ses_00000000000000000001",
            "template": "base",
        },
    ],
    "nextCursor": "abc",
}


def test_a_list_is_a_table_or_json(server: Server) -> None:
    server.on("GET", "/sandboxes", Reply(200, PAGE))
    result = CliRunner().invoke(cli, ["sandbox", "list", "--limit", "2", "-o", "table"], env={"COLUMNS": "60"})
    lines = result.stdout.splitlines()
    assert lines[0].split()[0] == "ID"
    assert "COMMANDS" not in lines[0], "empty columns are omitted"
    assert lines[1].startswith("sbx_00000000000000000001  running")
    assert "[red]" in lines[1]
    assert "ses_00000000000000000001" in lines[2], "an id is never truncated"
    assert "\x1b" not in result.stdout
    assert "--limit" in result.stderr
    plain = CliRunner().invoke(cli, ["sandbox", "list", "--limit", "2"])
    assert json.loads(plain.stdout) == PAGE, "a pipe gets the JSON of the API"


def test_sessions_are_listed_with_their_project_and_whole_status(server: Server) -> None:
    sandbox = {"status": "destroyed"}
    item = {
        "id": f"ses_{'1' * 20}",
        "title": "A long title " * 9,
        "projectId": "prj_1",
        "agent": "demo",
        "sandbox": sandbox,
    }
    server.on("GET", "/sessions", Reply(200, {"items": [item | {"createdAt": None}], "nextCursor": None}))
    server.on("GET", "/projects", Reply(200, {"items": [{"id": "prj_1", "name": "website"}], "nextCursor": None}))
    result = CliRunner().invoke(cli, ["session", "list", "-o", "table"], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert "destroyed" in result.stdout and "website" in result.stdout and "prj_1" not in result.stdout


def test_an_empty_list_prints_a_hint(server: Server) -> None:
    server.on("GET", "/sessions", Reply(200, {"items": [], "nextCursor": None}))
    result = CliRunner().invoke(cli, ["session", "list", "-o", "table"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "sandyard session create" in result.stderr


def test_a_single_object_is_shown_field_by_field(server: Server) -> None:
    box = {"id": "sbx_1", "status": "error", "error": "It\ndied.", "createdAt": "2026-01-31T07:00:00Z"}
    server.on("GET", "/sandboxes/sbx_1", Reply(200, box))
    printed = CliRunner().invoke(cli, ["sandbox", "show", "sbx_1", "-o", "table"]).stdout
    assert [line.split(maxsplit=1)[0] for line in printed.splitlines()] == ["id", "status", "error", "created"]
    assert "It died." in printed


def test_only_a_terminal_gets_truncated_tables(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [{"id": "agt_1", "name": "word " * 60, "title": "t", "ownerId": "usr_1", "apis": []}]
    server.on("GET", "/agents", Reply(200, {"items": items, "nextCursor": None}))
    server.on("GET", "/agents/x", Reply(200, items[0]))
    env = {"COLUMNS": "60"}
    for command in (["agent", "list"], ["agent", "show", "x"]):
        lines = CliRunner().invoke(cli, [*command, "-o", "table"], env=env).stdout.splitlines()
        assert any(("word " * 60).strip() in line for line in lines)
    monkeypatch.setattr("sandyard.cli.output.is_terminal", lambda: True)
    printed = CliRunner().invoke(cli, ["agent", "list", "-o", "table"], env=env).stdout
    assert max(len(line) for line in printed.splitlines()) <= 60


def test_sandboxes_fit_on_100_columns(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    item = {
        "id": "sbx_0abcdefghijklmnopqr",
        "status": "provisioning",
        "title": "Fix the login after a reload of the page",
        "projectName": "website",
        "template": "code-interpreter",
        "sessionId": "ses_0abcdefghijklmnopqr",
        "commandCount": 3,
        "createdAt": "2026-01-31T10:00:00Z",
    }
    server.on("GET", "/sandboxes", Reply(200, {"items": [item, {**item, "title": None}], "nextCursor": None}))
    command = ["sandbox", "list", "-o", "table"]
    monkeypatch.setattr("sandyard.cli.output.is_terminal", lambda: True)
    printed = CliRunner().invoke(cli, command, env={"COLUMNS": "100"}).stdout
    assert max(len(line) for line in printed.splitlines()) <= 100
    assert item["id"] in printed and "Fix the login" in printed and "website" in printed
    wide = CliRunner().invoke(cli, command, env={"COLUMNS": "200"}).stdout
    assert item["sessionId"] in wide and item["template"] in wide


class FullDisk(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("err", [False, True])
def test_a_server_continues_if_the_disk_of_its_log_is_full(err: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr" if err else "stdout", FullDisk())
    try_echo("started", err=err)
    with pytest.raises(OSError, match="No space left"):
        echo("a result", err=err)


def test_sizes_are_readable() -> None:
    assert [format_size(size) for size in (0, 1023, 1536, 250 << 20, 5 << 40)] == [
        "0 bytes",
        "1023 bytes",
        "1.5 KiB",
        "250 MiB",
        "5.0 TiB",
    ]
