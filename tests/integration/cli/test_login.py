"""`sandyard login` and `logout` with the real server."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from tests.harness.up import CommandResult, Installation
from tests.unit.cli.server import Reply, Server


def test_login_and_logout(installation: Installation) -> None:
    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
        done = installation.run(*arguments, stdin=stdin, SANDYARD_TOKEN=None)
        return done.returncode, (done.stdout + done.stderr).decode()

    code, printed = run("session", "list")
    assert code == 4
    assert "sandyard login" in printed
    assert run("login", installation.url, "--token", "-", stdin=b"sy_wrong\n")[0] == 4
    code, printed = run("login", installation.url, "--token", "-", stdin=f"{installation.token}\n".encode())
    assert code == 0, printed
    assert "as admin (admin)" in printed
    file = installation.folder / "config" / "sandyard" / "config.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert run("session", "list")[0] == 0
    assert run("logout")[0] == 0
    assert installation.token not in file.read_text()
    assert run("session", "list")[0] == 4
    assert installation.run("session", "list").returncode == 0, "a token that login did not create stays valid"


def test_login_by_name_creates_a_token_that_logout_revokes(installation: Installation) -> None:
    """Login creates a token, and logout revokes it."""
    headers = {"Authorization": f"Bearer {installation.token}"}
    user = {"name": "ada", "password": "correct horse battery", "role": "member"}
    answer = httpx.post(f"{installation.url}/api/v1/users", json=user, headers=headers)
    assert answer.status_code == 201, answer.text

    def run(*arguments: str, password: str | None = None) -> CommandResult:
        return installation.run(*arguments, SANDYARD_TOKEN=None, SANDYARD_PASSWORD=password)

    assert run("login", installation.url, "--name", "ada", password="wrong").returncode == 4
    done = run("login", installation.url, "--name", "ada", password="correct horse battery")
    assert done.returncode == 0, done.stderr
    assert b"as ada (member)" in done.stdout
    stored = json.loads((installation.folder / "config" / "sandyard" / "config.json").read_text())
    assert json.loads(run("sandbox", "list").stdout) == {"items": [], "nextCursor": None}
    refused = installation.run("password", "--stdin", stdin=b"wrong\nanother horse battery\n", SANDYARD_TOKEN=None)
    assert (refused.returncode, b"current password is wrong" in refused.stderr) == (4, True)
    new = b"correct horse battery\nanother horse battery\n"
    assert installation.run("password", "--stdin", stdin=new, SANDYARD_TOKEN=None).returncode == 0
    assert run("logout").returncode == 0
    assert run("login", installation.url, "--name", "ada", password="correct horse battery").returncode == 4
    assert run("login", installation.url, "--name", "ada", password="another horse battery").returncode == 0
    assert run("logout").returncode == 0
    used = httpx.get(f"{installation.url}/api/v1/me", headers={"Authorization": f"Bearer {stored['token']}"})
    assert used.status_code == 401


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        (("--token", "a", "--name", "b"), "", 2, "not both"),
        (("--token", "sy_\u00e9"), "", 1, "not a token"),
        (("ftp://x", "--token", "a"), "", 1, "not a server address"),
        (("http://127.0.0.1:1", "--token", "a"), "", 5, "Connection refused"),
    ],
)
def test_mistakes_are_reported_and_nothing_is_stored(
    arguments: tuple[str, ...], stdin: str, code: int, words: str, config_dir: Path
) -> None:
    result = CliRunner().invoke(cli, ["login", *arguments], input=stdin)
    assert result.exit_code == code
    assert words in result.stderr
    assert not config_dir.exists(), "nothing is stored"


def test_an_empty_token_is_an_error(server: Server, config_dir: Path) -> None:
    server.on("GET", "/me", Reply(401, {"title": "Unauthorized", "status": 401, "code": "unauthenticated"}))
    result = CliRunner().invoke(cli, ["login", "--token", "-"], input="\n")
    assert result.exit_code == 1
    assert "The token is empty" in result.stderr
    assert not config_dir.exists(), "nothing is stored"


def test_login_prompts_for_the_token(server: Server, monkeypatch: pytest.MonkeyPatch, config_dir: Path) -> None:
    monkeypatch.delenv("SANDYARD_TOKEN")
    server.on("GET", "/me", Reply(200, {"user": {"name": "ada", "role": "member"}}))
    result = CliRunner().invoke(cli, ["login"], input="sy_typed\n")
    assert result.exit_code == 0, result.output
    assert "sy_typed" not in result.output
    assert json.loads((config_dir / "sandyard" / "config.json").read_text())["token"] == "sy_typed"
    assert "overrides the saved login" in result.stderr


def test_logout_without_a_login_is_not_an_error() -> None:
    result = CliRunner().invoke(cli, ["logout"])
    assert (result.exit_code, result.output) == (0, "Not logged in.\n")
