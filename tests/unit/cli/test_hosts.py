"""`sandyard host` with the responses of an engine, and the commands for Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from tests.harness.http_server import serve_http

HOST: dict[str, Any] = {
    "hostID": "host-1",
    "name": "gpu-1",
    "local": False,
    "address": "10.0.0.2",
    "port": 3011,
    "labels": {},
    "draining": False,
    "evacuation": None,
    "lost": False,
    "source": "ray",
    "missingFromSource": True,
    "checkpoints": {"count": 0, "oldest": None},
    "state": "unreachable",
    "seenAt": None,
    "reason": "Connection refused.",
    "version": "1.0",
    "sandboxes": 2,
    "room": None,
}
SOURCE = {
    "name": "ray",
    "problem": "Ray at 10.0.0.1:6379 cannot be reached.",
    "machines": [
        {"id": "n1", "name": "gpu-2", "address": "10.0.0.3", "problem": "There is no disk."},
        {"id": "n2", "name": "gpu-3", "address": "10.0.0.4", "problem": None},
    ],
}


class _HostsHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        raw = json.dumps({"hosts": [HOST], "acceptsHosts": True, "sources": [SOURCE]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with serve_http(_HostsHandler) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_list_says_where_hosts_come_from_and_what_is_wrong_there(url: str) -> None:
    result = CliRunner().invoke(
        cli, ["host", "list", "-o", "table"], env={"E2B_API_URL": url, "E2B_API_KEY": "key", "COLUMNS": "400"}
    )
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if "gpu-1" in line)
    assert " ray " in line
    assert "Connection refused. It is no longer in the list of ray" in line
    assert result.stderr.splitlines() == [
        "Ray at 10.0.0.1:6379 cannot be reached.",
        "gpu-2 (ray) is not a host: There is no disk.",
    ]


def test_credentials_of_a_ray_cluster(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["host", "ray", "credentials", str(tmp_path), "10.0.0.1", "10.0.0.2"])
    assert result.output.splitlines() == [str(tmp_path / "10.0.0.1"), str(tmp_path / "10.0.0.2")]
    refused = CliRunner().invoke(cli, ["host", "ray", "credentials", str(tmp_path), "worker-1"])
    assert refused.exit_code != 0
    assert "must be an IP address" in refused.output


def test_a_node_needs_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(cli, ["host", "ray", "node", "--address", "10.0.0.1", "--credentials", str(tmp_path)])
    assert result.exit_code != 0
    assert "pip install 'sandyard[ray]'" in result.output
