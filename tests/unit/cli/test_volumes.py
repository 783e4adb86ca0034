"""`sandyard volume` with the responses of an engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from tests.harness.http_server import serve_http


class _VolumeHandler(BaseHTTPRequestHandler):
    volumes: dict[str, str]

    def do_GET(self) -> None:
        if self.headers["X-API-Key"] != "right":
            self._send(401, {"code": 401, "message": "The API key is not valid."})
            return
        self._send(200, [{"volumeID": key, "name": name} for key, name in self.volumes.items()])

    def do_DELETE(self) -> None:
        key = self.path.rpartition("/")[2]
        if key == "v2":
            self._send(409, {"code": 409, "message": "Volume 'used' is mounted in i1."})
            return
        del self.volumes[key]
        self.send_response(204)
        self.end_headers()

    def _send(self, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    _VolumeHandler.volumes = {"v1": "data", "v2": "used", "v3": "more"}
    with serve_http(_VolumeHandler) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def run(url: str, *words: str, key: str = "right") -> Result:
    return CliRunner().invoke(cli, ["volume", "--url", url, *words], env={"E2B_API_KEY": key})


def test_volumes_are_listed(url: str) -> None:
    assert run(url, "ls").output == "v1  data\nv2  used\nv3  more\n"


def test_volumes_are_deleted_by_name_and_id(url: str) -> None:
    assert run(url, "rm", "data", "v3").output == "Deleted data.\nDeleted v3.\n"
    assert _VolumeHandler.volumes == {"v2": "used"}


@pytest.mark.parametrize(
    ("words", "key", "why"),
    [
        (("rm", "data", "none"), "right", "no volume 'none'"),
        (("rm", "used"), "right", "mounted in i1"),
        (("ls",), "wrong", "not valid"),
    ],
)
def test_a_rejected_command_reports_the_reason(url: str, words: tuple[str, ...], key: str, why: str) -> None:
    result = run(url, *words, key=key)
    assert result.exit_code != 0
    assert why in str(result.exception) + result.output
    assert len(_VolumeHandler.volumes) == 3


def test_an_unreachable_engine_is_reported() -> None:
    result = run("http://127.0.0.1:1", "ls")
    assert result.exit_code != 0
    assert "is not responding" in str(result.exception) + result.output
