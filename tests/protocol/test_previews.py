"""Test previews: access to servers inside a sandbox from outside."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2b import Sandbox
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.harness.engine import Engine
from tests.protocol.preview_programs import ECHO, WEBSOCKETS

from .conftest import DataPlane, NewSandbox
from .waiting import until

BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0"}


def start_echo_server(sandbox: Sandbox, client: httpx.Client) -> None:
    sandbox.files.write("echo.py", ECHO)
    sandbox.commands.run("python3 echo.py", background=True, timeout=0)
    until(lambda: client.get("/").status_code == 200)


def test_every_method_is_forwarded_with_its_body(sandbox: Sandbox, data_plane: DataPlane) -> None:
    preview = data_plane(sandbox, port=8000)
    start_echo_server(sandbox, preview)
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        response = preview.request(method, "/a/b?c=d%20e", content=b"body" * 1000, headers={"X-Mine": "kept"})
        assert response.headers["x-echo"] == "yes"
        assert response.text.startswith(f"{method} /a/b?c=d%20e ")
        assert response.text.endswith("kept " + "body" * 1000)
    assert preview.head("/").text == ""
    assert preview.get("/", headers={"X-Want": "418"}).status_code == 418


def test_paths_of_the_control_api_reach_the_sandbox(sandbox: Sandbox, data_plane: DataPlane) -> None:
    preview = data_plane(sandbox, port=8000)
    start_echo_server(sandbox, preview)
    for path in ("/health", "/sandboxes", "/v2/sandboxes", "/files"):
        assert preview.get(path).text.startswith(f"GET {path} ")


def test_previews_by_host_name(sandbox: Sandbox, data_plane: DataPlane, engine: Engine) -> None:
    start_echo_server(sandbox, data_plane(sandbox, port=8000))
    name = f"8000-{sandbox.sandbox_id}.sandyard.test"
    assert sandbox.get_host(8000).startswith(f"8000-{sandbox.sandbox_id}.")
    assert httpx.get(f"{engine.url}/x", headers={"Host": name}).text.startswith(f"GET /x {name}")


def test_a_closed_port_returns_502(sandbox: Sandbox, data_plane: DataPlane) -> None:
    response = data_plane(sandbox, port=3210).get("/")
    assert response.status_code == 502
    assert response.headers["content-type"].startswith("application/json")
    body = response.json()
    assert body["message"] == "The sandbox is running but port is not open"
    assert (body["sandboxId"], body["port"]) == (sandbox.sandbox_id, 3210)


def test_browsers_get_an_html_error_page(sandbox: Sandbox, data_plane: DataPlane) -> None:
    closed = data_plane(sandbox, port=3210, **BROWSER).get("/")
    assert closed.status_code == 502
    assert closed.headers["content-type"].startswith("text/html")
    assert sandbox.sandbox_id in closed.text
    assert "3210" in closed.text
    sandbox.kill()
    gone = data_plane(sandbox, port=3210, **BROWSER).get("/")
    assert gone.status_code == 502
    assert "<html" in gone.text
    assert sandbox.sandbox_id in gone.text


def test_private_previews_need_the_traffic_token(new_sandbox: NewSandbox, data_plane: DataPlane) -> None:
    sandbox = new_sandbox(network={"allow_public_traffic": False})
    assert sandbox.traffic_access_token
    traffic_token = {"e2b-traffic-access-token": sandbox.traffic_access_token}
    private = data_plane(sandbox, port=8000, token=None, **traffic_token)
    start_echo_server(sandbox, private)
    assert private.get("/").status_code == 200
    missing = data_plane(sandbox, port=8000, token=None).get("/")
    assert missing.status_code == 403
    assert "is missing" in missing.json()["message"]
    wrong = data_plane(sandbox, port=8000, token=None, **{"e2b-traffic-access-token": "guess"}).get("/")
    assert wrong.status_code == 403
    assert "is invalid" in wrong.json()["message"]
    assert data_plane(sandbox, port=9999, token=None).get("/").status_code == 403, (
        "the response must not reveal which ports are open"
    )
    assert sandbox.commands.run("echo agent unaffected").stdout == "agent unaffected\n"
    assert sandbox.get_info().network["allow_public_traffic"] is False  # type: ignore[index]


def test_a_private_preview_shows_browsers_which_header_is_missing(
    new_sandbox: NewSandbox, data_plane: DataPlane
) -> None:
    sandbox = new_sandbox(network={"allow_public_traffic": False})
    response = data_plane(sandbox, port=8000, token=None, **BROWSER).get("/")
    assert response.status_code == 403
    assert response.headers["content-type"].startswith("text/html")
    assert "e2b-traffic-access-token" in response.text
    assert (sandbox.traffic_access_token or "") not in response.text


def test_tokens_are_not_forwarded_to_the_sandbox(new_sandbox: NewSandbox, data_plane: DataPlane) -> None:
    sandbox = new_sandbox(network={"allow_public_traffic": False})
    assert sandbox.traffic_access_token
    preview = data_plane(
        sandbox, port=8000, **{"e2b-traffic-access-token": sandbox.traffic_access_token, "X-API-KEY": "k"}
    )
    start_echo_server(sandbox, preview)
    headers = preview.get("/headers").json()
    assert not {"e2b-traffic-access-token", "x-access-token", "x-api-key"} & headers.keys()


def test_forwarded_headers_name_the_client(sandbox: Sandbox, data_plane: DataPlane, engine: Engine) -> None:
    preview = data_plane(sandbox, port=8000)
    start_echo_server(sandbox, preview)
    name = f"8000-{sandbox.sandbox_id}.sandyard.test"
    headers = httpx.get(f"{engine.url}/headers", headers={"Host": name}).json()
    assert headers["host"] == headers["x-forwarded-host"] == name
    assert (headers["x-forwarded-proto"], headers["x-forwarded-for"]) == ("http", "127.0.0.1")
    # as a proxy on this machine sends them
    proxy_headers = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"}
    headers = httpx.get(f"{engine.url}/headers", headers={"Host": name, **proxy_headers}).json()
    assert (headers["x-forwarded-proto"], headers["x-forwarded-for"]) == ("https", "192.0.2.1, 127.0.0.1")


def test_the_host_header_can_be_masked(new_sandbox: NewSandbox, data_plane: DataPlane) -> None:
    sandbox = new_sandbox(network={"mask_request_host": "custom-host.example.com:${PORT}"})
    preview = data_plane(sandbox, port=8000)
    start_echo_server(sandbox, preview)
    assert "custom-host.example.com:8000" in preview.get("/").text


def test_an_upgraded_connection_is_forwarded_both_ways(sandbox: Sandbox, engine: Engine) -> None:
    """A WebSocket upgrades its connection to another protocol: bytes must flow both ways afterwards."""
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
    with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as connection:
        host = f"8000-{sandbox.sandbox_id}.sandyard.test"
        connection.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n".encode())
        response = b""
        while b"\r\n\r\n" not in response:
            response += connection.recv(65536)
        assert response.startswith(b"HTTP/1.1 101")
        for word in (b"hello", b"again"):
            connection.sendall(word)
            assert connection.recv(65536) == word.upper()


def test_a_stream_is_forwarded_without_buffering(sandbox: Sandbox, data_plane: DataPlane) -> None:
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
    preview = data_plane(sandbox, port=8000)
    until(lambda: sandbox.files.exists("up"))
    with preview.stream("GET", "/", timeout=10) as response:
        assert next(response.iter_bytes()) == b"data: one\n\n"


@pytest.mark.parametrize("size", [0, 1, 65536, 5_000_000])
def test_bodies_of_any_size_are_forwarded(sandbox: Sandbox, data_plane: DataPlane, size: int) -> None:
    preview = data_plane(sandbox, port=8000)
    start_echo_server(sandbox, preview)
    assert preview.post("/", content=b"x" * size).content.endswith(b" " + b"x" * size)


def start_websocket_server(sandbox: Sandbox) -> None:
    sandbox.files.write("websockets.py", WEBSOCKETS)
    sandbox.commands.run("python3 websockets.py", background=True, timeout=0)
    until(lambda: sandbox.files.exists("up"))


@contextlib.contextmanager
def open_websocket(sandbox: Sandbox, engine: Engine, **headers: str) -> Iterator[ClientConnection]:
    """Open a WebSocket to port 8000 of the sandbox by its host name, as a client library does."""
    connection = socket.create_connection(("127.0.0.1", engine.port), timeout=10)
    address = f"ws://8000-{sandbox.sandbox_id}.sandyard.test/chat?room=1"
    with connect(
        address,
        sock=connection,
        subprotocols=[Subprotocol("chat")],
        additional_headers=headers,
        max_size=None,
        proxy=None,
    ) as websocket:
        yield websocket


def test_websocket_messages_are_forwarded(sandbox: Sandbox, engine: Engine) -> None:
    start_websocket_server(sandbox)
    with open_websocket(sandbox, engine) as connection:
        assert connection.subprotocol == "chat"
        assert connection.recv(timeout=10) == f"/chat?room=1 8000-{sandbox.sandbox_id}.sandyard.test"
        for message in ("hello", "", "ü" * 100_000, b"\0\1\2", b"x" * 3_000_000):
            connection.send(message)
            assert connection.recv(timeout=30) == message
    assert connection.close_code == 1000


def test_private_websockets_need_the_traffic_token(new_sandbox: NewSandbox, engine: Engine) -> None:
    sandbox = new_sandbox(network={"allow_public_traffic": False})
    assert sandbox.traffic_access_token
    start_websocket_server(sandbox)
    with pytest.raises(InvalidStatus) as refused, open_websocket(sandbox, engine):
        pass
    assert refused.value.response.status_code == 403
    with open_websocket(sandbox, engine, **{"e2b-traffic-access-token": sandbox.traffic_access_token}) as connection:
        assert connection.recv(timeout=10)


def test_a_websocket_ends_with_its_sandbox(sandbox: Sandbox, engine: Engine) -> None:
    start_websocket_server(sandbox)
    with open_websocket(sandbox, engine) as connection:
        connection.recv(timeout=10)
        sandbox.kill()
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=10)


EVENTS = """
import http.server, os, time
class Events(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number in range(3):
            while number and not os.path.exists(f"seen-{number}"):
                time.sleep(0.02)
            self.wfile.write(f"id: {number}\\ndata: event {number}\\n\\n".encode())
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Events)
open("up", "w").close()
server.serve_forever()
"""


def test_each_server_sent_event_arrives_before_the_next_is_sent(sandbox: Sandbox, data_plane: DataPlane) -> None:
    sandbox.files.write("events.py", EVENTS)
    sandbox.commands.run("python3 events.py", background=True, timeout=0)
    until(lambda: sandbox.files.exists("up"))
    with data_plane(sandbox, port=8000).stream("GET", "/", headers={"Accept": "text/event-stream"}) as response:
        assert response.headers["content-type"] == "text/event-stream"
        lines = response.iter_lines()
        for number in range(3):
            assert [next(lines), next(lines), next(lines)] == [f"id: {number}", f"data: event {number}", ""]
            sandbox.files.write(f"seen-{number + 1}", "")  # the server waits for this


def get_state(sandbox: Sandbox) -> str:
    return sandbox.get_info().state.value


AUTO_RESUME = {"on_timeout": {"action": "pause"}, "auto_resume": True}


def test_a_request_resumes_a_sandbox_with_auto_resume(new_sandbox: NewSandbox, data_plane: DataPlane) -> None:
    sandbox = new_sandbox(lifecycle=AUTO_RESUME)
    preview = data_plane(sandbox, port=8000, **BROWSER)
    start_echo_server(sandbox, preview)
    sandbox.pause()
    assert get_state(sandbox) == "paused"
    assert preview.get("/again").text.startswith("GET /again ")
    assert get_state(sandbox) == "running"


def test_a_websocket_resumes_a_sandbox_with_auto_resume(new_sandbox: NewSandbox, engine: Engine) -> None:
    sandbox = new_sandbox(lifecycle=AUTO_RESUME)
    start_websocket_server(sandbox)
    sandbox.pause()
    with open_websocket(sandbox, engine) as connection:
        assert connection.recv(timeout=10)
    assert get_state(sandbox) == "running"


def test_a_request_without_the_token_does_not_resume_the_sandbox(
    new_sandbox: NewSandbox, data_plane: DataPlane
) -> None:
    sandbox = new_sandbox(network={"allow_public_traffic": False}, lifecycle=AUTO_RESUME)
    assert sandbox.traffic_access_token
    private = data_plane(sandbox, port=8000, token=None, **{"e2b-traffic-access-token": sandbox.traffic_access_token})
    start_echo_server(sandbox, private)
    sandbox.pause()
    assert data_plane(sandbox, port=8000, token=None).get("/").status_code == 403
    assert get_state(sandbox) == "paused"
    assert private.get("/").status_code == 200
    assert get_state(sandbox) == "running"


def test_a_request_does_not_resume_a_sandbox_without_auto_resume(sandbox: Sandbox, data_plane: DataPlane) -> None:
    sandbox.pause()
    response = data_plane(sandbox, port=8000).get("/")
    assert response.status_code == 502
    assert response.json()["message"] == "The sandbox was not found"
    page = data_plane(sandbox, port=8000, **BROWSER).get("/")
    assert (page.status_code, page.headers["content-type"]) == (502, "text/html; charset=utf-8")
    assert get_state(sandbox) == "paused"


TLS = """
import ssl, sys
sys.argv = ["echo"]
import http.server
source = open("echo.py").read().replace("http.server.ThreadingHTTPServer", "Secure")
class Secure(http.server.ThreadingHTTPServer):
    def __init__(self, address, handler):
        super().__init__((address[0], 8443), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain("both.pem")
        self.socket = context.wrap_socket(self.socket, server_side=True)
exec(source)
"""


def test_ports_that_serve_https(new_sandbox: NewSandbox, data_plane: DataPlane, tmp_path: Path) -> None:
    sandbox = new_sandbox(network={"https_ports": [8443, 8000]})
    assert sandbox.get_info().network["https_ports"] == [8443, 8000]  # type: ignore[index]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-subj", "/CN=nobody", "-days", "2", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    sandbox.files.write("both.pem", (tmp_path / "cert.pem").read_text() + (tmp_path / "key.pem").read_text())
    sandbox.files.write("echo.py", ECHO)
    sandbox.files.write("tls.py", TLS)
    sandbox.commands.run("python3 tls.py", background=True, timeout=0)
    secure = data_plane(sandbox, port=8443)
    until(lambda: secure.get("/").status_code == 200)
    assert secure.post("/a?b", content=b"x" * 1_000_000).text.endswith(" " + "x" * 1_000_000)
    sandbox.commands.run("python3 echo.py", background=True, timeout=0)  # plain HTTP on a port declared as HTTPS
    wrong = data_plane(sandbox, port=8000)
    until(lambda: "does not use TLS" in wrong.get("/").json()["message"])
    assert wrong.get("/").status_code == 502
