"""Servers inside a sandbox, seen from outside."""

from __future__ import annotations

import socket

import httpx
import pytest
from e2b import Sandbox

from .conftest import NewSandbox, Plane
from .engine import Engine
from .waiting import until

BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0"}

ECHO = """
import http.server
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        line = f"{self.command} {self.path} {self.headers['Host']} {self.headers.get('X-Mine')} "
        body = line.encode() + self.rfile.read(size)
        self.send_response(int(self.headers.get("X-Want") or 200))
        self.send_header("X-Echo", "yes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = answer
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Echo).serve_forever()
"""


def serve(sandbox: Sandbox, client: httpx.Client) -> None:
    sandbox.files.write("echo.py", ECHO)
    sandbox.commands.run("python3 echo.py", background=True, timeout=0)
    until(lambda: client.get("/").status_code == 200)


def test_every_method_and_its_body(sandbox: Sandbox, plane: Plane) -> None:
    preview = plane(sandbox, port=8000)
    serve(sandbox, preview)
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        answer = preview.request(method, "/a/b?c=d%20e", content=b"body" * 1000, headers={"X-Mine": "kept"})
        assert answer.headers["x-echo"] == "yes"
        assert answer.text.startswith(f"{method} /a/b?c=d%20e ")
        assert answer.text.endswith("kept " + "body" * 1000)
    assert preview.head("/").text == ""
    assert preview.get("/", headers={"X-Want": "418"}).status_code == 418


def test_paths_of_the_control_api_belong_to_the_sandbox_there(sandbox: Sandbox, plane: Plane) -> None:
    preview = plane(sandbox, port=8000)
    serve(sandbox, preview)
    for path in ("/health", "/sandboxes", "/v2/sandboxes", "/files"):
        assert preview.get(path).text.startswith(f"GET {path} ")


def test_by_host_name(sandbox: Sandbox, plane: Plane, engine: Engine) -> None:
    serve(sandbox, plane(sandbox, port=8000))
    name = f"8000-{sandbox.sandbox_id}.sandyard.test"
    assert sandbox.get_host(8000).startswith(f"8000-{sandbox.sandbox_id}.")
    assert httpx.get(f"{engine.url}/x", headers={"Host": name}).text.startswith(f"GET /x {name}")


def test_a_closed_port(sandbox: Sandbox, plane: Plane) -> None:
    answer = plane(sandbox, port=3210).get("/")
    assert answer.status_code == 502
    assert answer.headers["content-type"].startswith("application/json")
    told = answer.json()
    assert told["message"] == "The sandbox is running but port is not open"
    assert (told["sandboxId"], told["port"]) == (sandbox.sandbox_id, 3210)


def test_people_get_a_page(sandbox: Sandbox, plane: Plane) -> None:
    closed = plane(sandbox, port=3210, **BROWSER).get("/")
    assert closed.status_code == 502
    assert closed.headers["content-type"].startswith("text/html")
    assert sandbox.sandbox_id in closed.text
    assert "3210" in closed.text
    sandbox.kill()
    gone = plane(sandbox, port=3210, **BROWSER).get("/")
    assert gone.status_code == 502
    assert "<html" in gone.text
    assert sandbox.sandbox_id in gone.text


def test_private_previews(new_sandbox: NewSandbox, plane: Plane) -> None:
    sandbox = new_sandbox(network={"allow_public_traffic": False})
    assert sandbox.traffic_access_token
    key = {"e2b-traffic-access-token": sandbox.traffic_access_token}
    private = plane(sandbox, port=8000, token=None, **key)
    serve(sandbox, private)
    assert private.get("/").status_code == 200
    missing = plane(sandbox, port=8000, token=None).get("/")
    assert missing.status_code == 403
    assert "is missing" in missing.json()["message"]
    wrong = plane(sandbox, port=8000, token=None, **{"e2b-traffic-access-token": "guess"}).get("/")
    assert wrong.status_code == 403
    assert "is invalid" in wrong.json()["message"]
    assert plane(sandbox, port=9999, token=None).get("/").status_code == 403, "it tells nobody which ports are open"
    assert sandbox.commands.run("echo agent unaffected").stdout == "agent unaffected\n"
    assert sandbox.get_info().network["allow_public_traffic"] is False  # type: ignore[index]


def test_the_host_header_can_be_masked(new_sandbox: NewSandbox, plane: Plane) -> None:
    sandbox = new_sandbox(network={"mask_request_host": "custom-host.example.com:${PORT}"})
    preview = plane(sandbox, port=8000)
    serve(sandbox, preview)
    assert "custom-host.example.com:8000" in preview.get("/").text


def test_an_upgraded_connection_passes(sandbox: Sandbox, engine: Engine) -> None:
    """A WebSocket is a connection that changes its protocol: bytes must flow both ways afterwards."""
    sandbox.files.write(
        "upgrade.py",
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 8000)); open('up', 'w').close()\n"
        "while True:\n"
        "    c, _ = s.accept(); c.recv(65536)\n"
        "    c.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n')\n"
        "    while data := c.recv(65536): c.sendall(data.upper())\n",
    )
    sandbox.commands.run("python3 upgrade.py", background=True, timeout=0)
    until(lambda: sandbox.files.exists("up"))
    with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as line:
        host = f"8000-{sandbox.sandbox_id}.sandyard.test"
        line.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += line.recv(65536)
        assert answer.startswith(b"HTTP/1.1 101")
        for word in (b"hello", b"again"):
            line.sendall(word)
            assert line.recv(65536) == word.upper()


def test_a_stream_is_passed_on_as_it_comes(sandbox: Sandbox, plane: Plane) -> None:
    sandbox.files.write(
        "drip.py",
        "import http.server, time\n"
        "class Drip(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers()\n"
        "        self.wfile.write(b'data: one\\n\\n'); self.wfile.flush(); time.sleep(30)\n"
        "    def log_message(self, *_): pass\n"
        "server = http.server.ThreadingHTTPServer(('', 8000), Drip)\n"
        "open('up', 'w').close()\n"
        "server.serve_forever()\n",
    )
    sandbox.commands.run("python3 drip.py", background=True, timeout=0)
    preview = plane(sandbox, port=8000)
    until(lambda: sandbox.files.exists("up"))
    with preview.stream("GET", "/", timeout=10) as answer:
        assert next(answer.iter_bytes()) == b"data: one\n\n"


@pytest.mark.parametrize("size", [0, 1, 65536, 5_000_000])
def test_bodies_of_every_size(sandbox: Sandbox, plane: Plane, size: int) -> None:
    preview = plane(sandbox, port=8000)
    serve(sandbox, preview)
    assert preview.post("/", content=b"x" * size).content.endswith(b" " + b"x" * size)
