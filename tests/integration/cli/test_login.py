"""`sandyard login` and `logout` against the real server."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from tests.integration.cli.real import Done, Yard
from tests.unit.cli.server import Reply, Server


def test_login_and_logout(yard: Yard) -> None:
    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
        done = yard.run(*arguments, stdin=stdin, SANDYARD_TOKEN=None)
        return done.returncode, (done.stdout + done.stderr).decode()

    code, said = run("session", "list")
    assert code == 4
    assert "sandyard login" in said
    assert run("login", yard.url, "--token", "-", stdin=b"sy_wrong\n")[0] == 4
    code, said = run("login", yard.url, "--token", "-", stdin=f"{yard.token}\n".encode())
    assert code == 0, said
    assert "as admin (admin)" in said
    file = yard.folder / "config" / "sandyard" / "config.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert run("session", "list")[0] == 0
    assert run("logout")[0] == 0
    assert yard.token not in file.read_text()
    assert run("session", "list")[0] == 4
    assert yard.run("session", "list").returncode == 0, "a token that login did not make stays valid"


def test_login_by_name(yard: Yard) -> None:
    """A token is made for it, and logout ends that token."""
    headers = {"Authorization": f"Bearer {yard.token}"}
    person = {"name": "ada", "password": "correct horse battery", "role": "member"}
    answer = httpx.post(f"{yard.url}/api/v1/users", json=person, headers=headers)
    assert answer.status_code == 201, answer.text

    def run(*arguments: str, password: str | None = None) -> Done:
        return yard.run(*arguments, SANDYARD_TOKEN=None, SANDYARD_PASSWORD=password)

    assert run("login", yard.url, "--name", "ada", password="wrong").returncode == 4
    done = run("login", yard.url, "--name", "ada", password="correct horse battery")
    assert done.returncode == 0, done.stderr
    assert b"as ada (member)" in done.stdout
    stored = json.loads((yard.folder / "config" / "sandyard" / "config.json").read_text())
    assert json.loads(run("sandbox", "list").stdout) == {"items": [], "nextCursor": None}
    refused = yard.run("password", "--stdin", stdin=b"wrong\nanother horse battery\n", SANDYARD_TOKEN=None)
    assert (refused.returncode, b"current password is wrong" in refused.stderr) == (4, True)
    new = b"correct horse battery\nanother horse battery\n"
    assert yard.run("password", "--stdin", stdin=new, SANDYARD_TOKEN=None).returncode == 0
    assert run("logout").returncode == 0
    assert run("login", yard.url, "--name", "ada", password="correct horse battery").returncode == 4
    assert run("login", yard.url, "--name", "ada", password="another horse battery").returncode == 0
    assert run("logout").returncode == 0
    used = httpx.get(f"{yard.url}/api/v1/me", headers={"Authorization": f"Bearer {stored['token']}"})
    assert used.status_code == 401


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        (("--token", "a", "--name", "b"), "", 2, "not both"),
        (("--token", "-"), "\n", 1, "empty"),
        (("--token", "sy_\u00e9"), "", 1, "not a token"),
        (("ftp://x", "--token", "a"), "", 1, "not a server address"),
        (("http://127.0.0.1:1", "--token", "a"), "", 5, "Connection refused"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], stdin: str, code: int, words: str, nobody: Path) -> None:
    result = CliRunner().invoke(cli, ["login", *arguments], input=stdin)
    assert result.exit_code == code
    assert words in result.stderr
    assert not nobody.exists(), "nothing is stored"


def test_the_token_is_asked_for(server: Server, monkeypatch: pytest.MonkeyPatch, nobody: Path) -> None:
    monkeypatch.delenv("SANDYARD_TOKEN")
    server.on("GET", "/me", Reply(200, {"user": {"name": "ada", "role": "member"}}))
    result = CliRunner().invoke(cli, ["login"], input="sy_typed\n")
    assert result.exit_code == 0, result.output
    assert "sy_typed" not in result.output
    assert json.loads((nobody / "sandyard" / "config.json").read_text())["token"] == "sy_typed"
    assert "overrides the saved login" in result.stderr


def test_logging_out_twice() -> None:
    result = CliRunner().invoke(cli, ["logout"])
    assert (result.exit_code, result.output) == (0, "Not logged in.\n")
