"""`sandyard sandbox ports` and `preview` with the real server."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import httpx

from tests.harness.up import Installation, run_json


def test_open_ports_are_listed_and_get_previews(installation: Installation) -> None:
    name = run_json(installation, "sandbox", "create")["id"]
    assert "No open ports" in installation.run("sandbox", "ports", name, "-o", "table").stderr.decode()
    installation.ok("sandbox", "exec", name, "nohup python3 -m http.server 3000 >/dev/null 2>&1 &")
    deadline = time.monotonic() + 60
    while not (found := run_json(installation, "sandbox", "ports", name)["items"]):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert (found[0]["port"], found[0]["process"]) == (3000, "python3")
    assert found[0]["url"] in installation.ok("sandbox", "ports", name, "-o", "table")

    url = installation.ok("sandbox", "preview", name, "3000", "--path", "/x?y=z").strip()
    assert url.startswith(f"{found[0]['url']}x?y=z&sandyard_ticket=")
    parts = urlsplit(url)
    answer = httpx.get(f"{installation.url}{parts.path}?{parts.query}", headers={"Host": parts.netloc})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{found[0]['url']}x?y=z")
    assert set(run_json(installation, "sandbox", "preview", name, "3000", "-o", "json")) == {"url", "expiresAt"}

    installation.ok("sandbox", "pause", name)
    assert "is paused" in installation.run("sandbox", "ports", name, "-o", "table").stderr.decode()
    assert installation.run("sandbox", "preview", name, "0").returncode == 2
    refused = installation.run("sandbox", "preview", name, "3000", "--path", "x")
    assert (refused.returncode, b"start with '/'" in refused.stderr) == (1, True)
    installation.ok("sandbox", "kill", name)
