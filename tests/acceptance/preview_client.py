"""Servers in sandboxes, and URLs of their previews."""

from __future__ import annotations

from pathlib import Path

from tests.harness.platform import Platform, ok, until

PORT = 3000
SERVER = (Path(__file__).parent / "preview_server.py").read_bytes()


def start_server(platform: Platform) -> str:
    """Create a sandbox with a server on PORT."""
    client = platform.client
    sandbox_id: str = ok(client.post("/sandboxes", json={}), 201)["id"]
    ok(client.put(f"/sandboxes/{sandbox_id}/files", params={"path": "/home/user/server.py"}, content=SERVER))
    command = f"nohup python3 /home/user/server.py {PORT} >/dev/null 2>&1 &"  # a running command would keep the sandbox from pausing
    ok(client.post(f"/sandboxes/{sandbox_id}/execute", json={"command": command}))
    until(lambda: PORT in [item["port"] for item in ok(client.get(f"/sandboxes/{sandbox_id}/ports"))["items"]])
    return sandbox_id


def create_preview_url(platform: Platform, sandbox: str, port: int = PORT, path: str = "/") -> str:
    url: str = ok(platform.client.post(f"/sandboxes/{sandbox}/previews", json={"port": port, "path": path}), 201)["url"]
    return url
