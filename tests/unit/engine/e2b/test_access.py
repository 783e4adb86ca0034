"""Access to sandboxes through the gateway: who is let in, and which errors the others get."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import replace
from urllib.parse import urlencode

import pytest
from e2b.sandbox.signature import get_signature

from sandyard.engine.sandboxes.model import Network, State
from sandyard.kit.secret import Secret
from tests.unit.engine.e2b.support import TOKEN, GatewayHarness, read_request, reply, request, sandbox
from tests.unit.engine.e2b.test_relay import Reader, Writer

BROWSER = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Chrome/120.0"


async def reply_with_request_line(reader: Reader, writer: Writer) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            line, headers, _ = await read_request(reader)
            writer.write(reply(f"{line} {headers.get('host')}".encode()))
    writer.close()


def request_without_token(path: str, *lines: str, method: str = "GET", port: int = 49983) -> bytes:
    """Build a request without a token."""
    head = [f"{method} {path} HTTP/1.1", "Host: engine", "E2b-Sandbox-Id: iabc", f"E2b-Sandbox-Port: {port}", *lines]
    return "\r\n".join([*head, "", ""]).encode()


def signed_path(path: str, token: str = TOKEN, expires_in: int | None = None, operation: str = "read") -> str:
    result = get_signature(path, operation, "user", token, expires_in)  # type: ignore[arg-type]
    query = {"path": path, "username": "user", "signature": result["signature"]}
    if result["expiration"] is not None:
        query["signature_expiration"] = str(result["expiration"])
    return f"/files?{urlencode(query)}"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (request_without_token("/health"), 200),
        (request_without_token("/envs"), 401),
        (request_without_token("/envs", f"X-Access-Token: {TOKEN}"), 200),
        (request_without_token("/envs", "X-Access-Token: wrong"), 401),
        (request_without_token("/envs", "X-Access-Token: ü"), 401),
        (request_without_token("/process.Process/Start", method="POST"), 401),
        (request_without_token("/files?path=x"), 401),
        (request_without_token("/files?path=x", f"X-Access-Token: {TOKEN}"), 200),
        (request_without_token("/files/compose", method="POST"), 401),
        (request_without_token(signed_path("x")), 200),
        (request_without_token(signed_path("x", expires_in=86_400)), 200),  # signed when the tests are collected
        (request_without_token(signed_path("x", "other token")), 401),
        (request_without_token(signed_path("x", operation="write")), 401),
        (request_without_token(signed_path("x"), "X-Access-Token: wrong"), 401),
        (request_without_token("/init", f"X-Access-Token: {TOKEN}", method="POST"), 401),
        (request_without_token("//init/", f"X-Access-Token: {TOKEN}", method="POST"), 401),
        (request_without_token("/_sandyard/dial?port=22", f"X-Access-Token: {TOKEN}"), 401),
        (request_without_token("/%5Fsandyard/dial?port=22", f"X-Access-Token: {TOKEN}"), 401),
        (request_without_token("/anything", port=8000), 200),
        (request_without_token("/_sandyard/dial", port=8000), 200),
        (request_without_token("/x", port=9), 502),
        (request_without_token("/files?" + "a=b&" * 40 + "signature=x"), 400),
    ],
    # Without the signature: it contains a time, so the ids would differ between workers that collect at different times.
    ids=lambda value: value.split(b"\r\n")[0].split(b"&")[0].decode() if isinstance(value, bytes) else str(value),
)
async def test_only_authorized_requests_reach_the_sandbox(harness: GatewayHarness, raw: bytes, status: int) -> None:
    await harness.sandboxes.listen(reply_with_request_line)
    await harness.sandboxes.listen(reply_with_request_line, port=8000)
    actual, headers, body = await harness.send_request(raw)
    assert actual == status, body
    if status != 200:
        assert headers["content-type"] == "application/json; charset=utf-8"
        assert json.loads(body)["code"] == status
        assert json.loads(body).get("sandboxId") == ("iabc" if status == 502 else None)


async def test_an_expired_signature_is_reported_as_expired(harness: GatewayHarness) -> None:
    _, _, body = await harness.send_request(request_without_token(signed_path("x", expires_in=-5)))
    assert json.loads(body)["message"] == "signature is already expired"


async def test_a_sandbox_without_a_token_needs_no_authentication(harness: GatewayHarness) -> None:
    harness.sandboxes.records["iabc"] = sandbox(access_token=None, secure=False)
    await harness.sandboxes.listen(reply_with_request_line)
    assert (await harness.send_request(request_without_token("/envs")))[0] == 200
    assert (await harness.send_request(request_without_token("/files?path=x")))[0] == 200


async def test_a_signed_url_without_a_sandbox_id_is_matched_by_its_signature(harness: GatewayHarness) -> None:
    harness.sandboxes.records |= {
        f"i{number}": sandbox(f"i{number}", access_token=Secret(f"t{number}")) for number in (1, 2)
    }
    await harness.sandboxes.listen(reply_with_request_line, sandbox_id="i2")
    url = signed_path("x", "t2", 60)
    assert (await harness.send_request(f"GET {url} HTTP/1.1\r\nHost: engine\r\n\r\n".encode()))[0] == 200
    harness.sandboxes.interrupt("i2")
    assert (await harness.send_request(f"GET {url} HTTP/1.1\r\nHost: engine\r\n\r\n".encode()))[0] == 401
    for wrong in (signed_path("x", "t9"), signed_path("x", "t1", -5)):
        status, _, body = await harness.send_request(f"GET {wrong} HTTP/1.1\r\nHost: engine\r\n\r\n".encode())
        assert status == 401, body
    assert (await harness.send_request(b"GET /files?path=x HTTP/1.1\r\nHost: engine\r\n\r\n"))[2] == b"control"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (request_without_token("/health", port=49999), 200),
        (request_without_token("/execute", method="POST", port=49999), 401),
        (request_without_token("//execute/", method="POST", port=49999), 401),
        (request_without_token("/execute", "X-Access-Token: wrong", method="POST", port=49999), 401),
        (request_without_token("/execute", f"X-Access-Token: {TOKEN}", method="POST", port=49999), 200),
        (request_without_token("/execute", method="OPTIONS", port=49999), 200),
        (request_without_token("/anything", port=49999), 401),
        (request_without_token("/contexts", port=49999), 200),  # E2B's SDKs send no token there
        (request_without_token("/contexts", "X-Access-Token: wrong", port=49999), 401),
    ],
)
async def test_only_authorized_requests_reach_the_code_interpreter(
    harness: GatewayHarness, raw: bytes, status: int
) -> None:
    await harness.sandboxes.listen(reply_with_request_line, port=49999)
    assert (await harness.send_request(raw))[0] == status
    harness.sandboxes.records["iabc"] = sandbox(traffic_token=Secret("traffic"))
    assert (await harness.send_request(raw))[0] == (401 if status == 401 else 403), (
        "a private sandbox also requires the traffic token"
    )


async def test_a_missing_code_interpreter_is_reported_with_the_build_command(harness: GatewayHarness) -> None:
    status, _, body = await harness.send_request(
        request_without_token("/execute", f"X-Access-Token: {TOKEN}", method="POST", port=49999)
    )
    assert status == 501
    assert "sandyard template build code-interpreter" in json.loads(body)["message"]


async def test_private_previews_require_the_traffic_token(harness: GatewayHarness) -> None:
    harness.sandboxes.records["iabc"] = sandbox(traffic_token=Secret("traffic"))
    await harness.sandboxes.listen(reply_with_request_line, port=8000)
    missing = await harness.send_request(request_without_token("/", port=8000))
    wrong = await harness.send_request(request_without_token("/", "E2b-Traffic-Access-Token: x", port=8000))
    right = await harness.send_request(request_without_token("/", "E2b-Traffic-Access-Token: traffic", port=8000))
    assert (missing[0], wrong[0], right[0]) == (403, 403, 200)
    prefix = "Sandbox is secured with traffic access token. "
    messages = [json.loads(page[2])["message"] for page in (missing, wrong)]
    assert messages[0] == prefix + "Token header 'e2b-traffic-access-token' is missing"
    assert messages[1] == prefix + "Provided token in header 'e2b-traffic-access-token' is invalid"


async def test_a_missing_sandbox_or_closed_port_is_reported(harness: GatewayHarness) -> None:
    status, headers, body = await harness.send_request(request_without_token("/x").replace(b"iabc", b"inone"))
    assert status == 502
    assert json.loads(body) == {"code": 502, "message": "The sandbox was not found", "sandboxId": "inone"}
    assert headers["access-control-allow-origin"] == "*"
    _, _, body = await harness.send_request(request_without_token("/x", port=3210))
    assert json.loads(body) == {
        "code": 502,
        "message": "The sandbox is running but port is not open",
        "sandboxId": "iabc",
        "port": 3210,
    }


@pytest.mark.parametrize(
    ("raw", "status", "words"),
    [
        (request_without_token("/", BROWSER, port=3210), 502, ["no service running on port", "3210", "iabc"]),
        (
            request_without_token("/", BROWSER, port=3210).replace(b"iabc", b"inone"),
            502,
            ["Sandbox Not Found", "inone"],
        ),
        (
            request_without_token("/", BROWSER, port=80).replace(b"iabc", b"iprivate"),
            403,
            ["Missing Traffic Access Token", "iprivate"],
        ),
    ],
)
async def test_browsers_get_an_html_error_page(
    harness: GatewayHarness, raw: bytes, status: int, words: list[str]
) -> None:
    harness.sandboxes.records["iprivate"] = sandbox("iprivate", traffic_token=Secret("t"))
    actual, headers, body = await harness.send_request(raw)
    assert actual == status
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert body.startswith(b"<html")
    assert body.endswith(b"</html>")
    for word in words:
        assert word.encode() in body


async def test_error_pages_escape_markup(harness: GatewayHarness) -> None:
    raw = f"GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: <script>\r\n{BROWSER}\r\n\r\n".encode()
    assert b"<script>" not in (await harness.send_request(raw))[2]


async def test_paused_sandboxes_are_not_found_unless_traffic_resumes_them(harness: GatewayHarness) -> None:
    await harness.sandboxes.listen(reply_with_request_line)
    record = harness.sandboxes.records["iabc"]
    harness.sandboxes.records["iabc"] = replace(record, state=State.PAUSED)
    assert (await harness.send_request(request()))[0] == 502
    harness.sandboxes.records["iabc"] = replace(record, state=State.PAUSED, auto_resume=True)
    assert (await harness.send_request(request_without_token("/health")))[0] == 502, (
        "a health check must not resume the sandbox"
    )
    assert (await harness.send_request(request_without_token("/envs")))[0] == 401
    assert not harness.sandboxes.records["iabc"].running, "an unauthorized request must not resume the sandbox"
    assert (await harness.send_request(request()))[0] == 200
    assert harness.sandboxes.records["iabc"].running


async def test_a_users_server_gets_the_requested_or_masked_host(harness: GatewayHarness) -> None:
    await harness.sandboxes.listen(reply_with_request_line, port=8000)
    assert (await harness.send_request(request_without_token("/a", port=8000)))[2] == b"GET /a HTTP/1.1 engine"
    named = b"GET /a HTTP/1.1\r\nHost: 8000-iabc.example.com\r\n\r\n"
    assert (await harness.send_request(named))[2] == b"GET /a HTTP/1.1 8000-iabc.example.com"
    harness.sandboxes.records["iabc"] = sandbox(network=Network(config={"maskRequestHost": "mine.test:${PORT}"}))
    assert (await harness.send_request(named))[2] == b"GET /a HTTP/1.1 mine.test:8000"


async def test_the_agent_allows_cors_requests_from_any_origin(harness: GatewayHarness) -> None:
    preflight = request_without_token(
        "/envs", "Access-Control-Request-Method: GET", "Access-Control-Request-Headers: x-a", method="OPTIONS"
    )
    status, headers, _ = await harness.send_request(preflight)
    assert status == 204
    assert headers["access-control-allow-headers"] == "x-a"
    assert headers["access-control-allow-origin"] == "*"
    assert harness.sandboxes.dials == 0


async def test_an_invalid_port_is_rejected(harness: GatewayHarness) -> None:
    status, _, body = await harness.send_request(request_without_token("/").replace(b"49983", b"http"))
    assert status == 400
    assert json.loads(body)["code"] == 400


async def test_guessing_signatures_is_rate_limited(harness: GatewayHarness) -> None:
    started = time.monotonic()
    statuses = set()
    for number in range(80):
        url = f"/files?path={number}&signature=v1_x"
        statuses.add((await harness.send_request(f"GET {url} HTTP/1.1\r\nHost: engine\r\n\r\n".encode()))[0])
    assert statuses == {401, 429} or time.monotonic() - started > 5


async def test_a_missing_interpreter_language_is_added(harness: GatewayHarness) -> None:
    requested_languages: list[str] = []

    def add(template: str | None, language: str) -> str | None:
        requested_languages.append(language)
        return "It is being added." if language == "r" else None

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        language = head.split()[1].removeprefix(b"/execute/").decode()
        status, extra_header = (200, "") if language == "fine" else (400, f"x-missing-language: {language}\r\n")
        writer.write(
            f"HTTP/1.1 {status} X\r\n{extra_header}content-length: 4\r\nconnection: close\r\n\r\nlost".encode()
        )
        writer.close()

    await harness.sandboxes.listen(refuse, port=49999)
    await harness.sandboxes.listen(refuse, port=8000)
    harness.gateway.add_language = add
    status, headers, body = await harness.send_request(request("POST", "/execute/r", port=49999))
    assert (status, body) == (400, b"It is being added.")
    assert "x-missing-language" not in headers
    assert (await harness.send_request(request("POST", "/execute/cobol", port=49999)))[2] == b"lost"
    assert (await harness.send_request(request("POST", "/execute/fine", port=49999)))[2] == b"lost"
    assert (await harness.send_request(request("POST", "/execute/java", port=8000)))[2] == b"lost", (
        "only port 49999 belongs to the interpreter"
    )
    assert requested_languages == ["r", "cobol"]
