"""The server and the token: the environment overrides the file, and a token is never sent to an address it was not stored for."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandyard.cli import config
from sandyard.cli.config import Login
from sandyard.cli.errors import CommandError
from sandyard.kit.secret import Secret

URL = "https://yard.example"


def test_the_default_login_is_local_and_has_no_token() -> None:
    assert config.load() == Login("http://127.0.0.1:8700", None)


def test_a_stored_login_is_loaded_and_private() -> None:
    file = config.save(Login(URL, Secret("sy_one"), "tok_1"))
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert config.load() == Login(URL, Secret("sy_one"), "tok_1")
    assert [*file.parent.iterdir()] == [file]


def test_the_environment_overrides_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    config.save(Login(URL, Secret("sy_one")))
    monkeypatch.setenv("SANDYARD_TOKEN", "sy_two")
    assert config.load() == Login(URL, Secret("sy_two"))
    monkeypatch.setenv("SANDYARD_URL", "http://localhost:9000/")
    assert config.load() == Login("http://localhost:9000", Secret("sy_two"))


def test_a_stored_token_is_not_sent_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    config.save(Login(URL, Secret("sy_one")))
    monkeypatch.setenv("SANDYARD_URL", "https://other.example")
    assert config.load() == Login("https://other.example", None)
    monkeypatch.setenv("SANDYARD_URL", f"{URL}/")
    assert config.load().token == Secret("sy_one")


def test_deleting_the_login_keeps_the_address() -> None:
    config.save(Login(URL, Secret("sy_one")))
    assert config.delete_token().token == Secret("sy_one")
    assert config.load() == Login(URL, None)
    assert config.delete_token().token is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"url": 1}', "null", '{"url": "ftp://x"}'])
def test_a_broken_file_is_a_command_error(content: str, config_dir: Path) -> None:
    file = config_dir / "sandyard" / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(CommandError):
        config.load()


@pytest.mark.parametrize(
    "text", ["ftp://x", "http://", "http://x:port", "http://u:p@x", "http://x/?a=b", "http://[::1"]
)
def test_an_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(CommandError):
        config.validate_url(text)


@pytest.mark.parametrize(
    ("text", "url"), [("127.0.0.1:8700", "http://127.0.0.1:8700"), (" https://x/yard/ ", "https://x/yard")]
)
def test_an_address_is_normalized(text: str, url: str) -> None:
    assert config.validate_url(text) == url


@pytest.mark.parametrize(("url", "bare"), [(URL, False), ("http://10.0.0.1:8700", True), ("http://[::1]:1", False)])
def test_unencrypted_remote_connections_are_detected(url: str, bare: bool) -> None:
    assert Login(url).is_unencrypted is bare
