"""Test how commands find the engine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.cli import engine_api
from sandyard.cli.engine_api import DEFAULT_URL, EngineAddress, open_client
from sandyard.cli.main import cli
from sandyard.cli.up.data_directory import DataDirectory
from sandyard.kit import listen
from sandyard.kit.errors import ForbiddenError, UnreachableError

LOCAL_URL = "http://127.0.0.1:8701"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDirectory:
    monkeypatch.setattr(engine_api, "get_default_data_dir", lambda: tmp_path)
    return DataDirectory(tmp_path)


def test_without_a_server_on_this_machine_the_default_is_used(data: DataDirectory) -> None:
    assert EngineAddress.find(None, "") == EngineAddress(DEFAULT_URL, "")
    data.get_engine_key()
    assert EngineAddress.find(None, "") == EngineAddress(DEFAULT_URL, "")


def test_finds_the_engine_that_up_started(data: DataDirectory) -> None:
    key = data.get_engine_key().reveal()
    data.record_engine_url(LOCAL_URL)
    assert EngineAddress.find(None, "") == EngineAddress(LOCAL_URL, key)
    assert EngineAddress.find(LOCAL_URL, "") == EngineAddress(LOCAL_URL, key)
    assert EngineAddress.find(None, "given") == EngineAddress(LOCAL_URL, "given")


def test_does_not_send_its_key_to_another_engine(data: DataDirectory) -> None:
    data.get_engine_key()
    data.record_engine_url(LOCAL_URL)
    assert EngineAddress.find("https://engine.example", "") == EngineAddress("https://engine.example", "")


def test_snapshots_are_those_of_the_engine_on_this_machine(data: DataDirectory) -> None:
    data.get_engine_key()
    data.record_engine_url(f"http://127.0.0.1:{listen.free_port()}")
    result = CliRunner().invoke(cli, ["snapshot", "list"], env={"E2B_API_URL": None, "E2B_API_KEY": None})
    assert (result.exit_code, "not running" in result.output) == (1, True), result.output


def test_sends_its_key_only_to_a_server_of_the_same_user(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://192.0.2.1:3128")  # would be given the key
    key = data.get_engine_key().reveal()
    with socket.create_server(("127.0.0.1", 0)) as server:
        data.record_engine_url(f"http://127.0.0.1:{server.getsockname()[1]}")
        found = EngineAddress.find(None, "")
        with open_client(found) as client:
            assert client.headers["X-API-Key"] == key
            assert not client.trust_env, "the variables of proxies are ignored"
        monkeypatch.setattr(engine_api, "list_listener_owners", lambda _: {os.geteuid(), 12345})
        with pytest.raises(ForbiddenError, match="Another user"), open_client(found):
            pass
        with open_client(EngineAddress.find(found.url, "given")) as client:
            assert client.headers["X-API-Key"] == "given"
    monkeypatch.undo()
    with pytest.raises(UnreachableError, match="not running"), open_client(found):
        pass
