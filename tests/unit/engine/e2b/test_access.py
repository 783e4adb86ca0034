"""Who gets through to a sandbox, and what the others are told."""

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
from tests.unit.engine.e2b.support import TOKEN, Bench, read_request, reply, request, sandbox
from tests.unit.engine.e2b.test_relay import Reader, Writer

BROWSER = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Chrome/120.0"


async def greet(reader: Reader, writer: Writer) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            line, headers, _ = await read_request(reader)
            writer.write(reply(f"{line} {headers.get('host')}".encode()))
    writer.close()


def bare(path: str, *lines: str, method: str = "GET", port: int = 49983) -> bytes:
    """A request without a token."""
    head = [f"{method} {path} HTTP/1.1", "Host: engine", "E2b-Sandbox-Id: iabc", f"E2b-Sandbox-Port: {port}", *lines]
    return "\r\n".join([*head, "", ""]).encode()


def signed(path: str, token: str = TOKEN, expires_in: int | None = None, operation: str = "read") -> str:
    made = get_signature(path, operation, "user", token, expires_in)  # type: ignore[arg-type]
    query = {"path": path, "username": "user", "signature": made["signature"]}
    if made["expiration"] is not None:
        query["signature_expiration"] = str(made["expiration"])
    return f"/files?{urlencode(query)}"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (bare("/health"), 200),
        (bare("/envs"), 401),
        (bare("/envs", f"X-Access-Token: {TOKEN}"), 200),
        (bare("/envs", "X-Access-Token: wrong"), 401),
        (bare("/envs", "X-Access-Token: ü"), 401),
        (bare("/process.Process/Start", method="POST"), 401),
        (bare("/files?path=x"), 401),
        (bare("/files?path=x", f"X-Access-Token: {TOKEN}"), 200),
        (bare("/files/compose", method="POST"), 401),
        (bare(signed("x")), 200),
        (bare(signed("x", expires_in=86_400)), 200),  # made when tests are collected
        (bare(signed("x", "other token")), 401),
        (bare(signed("x", operation="write")), 401),
        (bare(signed("x"), "X-Access-Token: wrong"), 401),
        (bare("/init", f"X-Access-Token: {TOKEN}", method="POST"), 401),
        (bare("//init/", f"X-Access-Token: {TOKEN}", method="POST"), 401),
        (bare("/_sandyard/dial?port=22", f"X-Access-Token: {TOKEN}"), 401),
        (bare("/%5Fsandyard/dial?port=22", f"X-Access-Token: {TOKEN}"), 401),
        (bare("/anything", port=8000), 200),
        (bare("/_sandyard/dial", port=8000), 200),
        (bare("/x", port=9), 502),
        (bare("/files?" + "a=b&" * 40 + "signature=x"), 400),
    ],
    # without what is signed: a signature with a time in it differs between workers that collect at other times
    ids=lambda value: value.split(b"\r\n")[0].split(b"&")[0].decode() if isinstance(value, bytes) else str(value),
)
async def test_who_gets_through(gate: Bench, raw: bytes, status: int) -> None:
    await gate.sockets.listen(greet)
    await gate.sockets.listen(greet, port=8000)
    got, headers, body = await gate.ask(raw)
    assert got == status, body
    if status != 200:
        assert headers["content-type"] == "application/json; charset=utf-8"
        assert json.loads(body)["code"] == status
        assert json.loads(body).get("sandboxId") == ("iabc" if status == 502 else None)


async def test_an_expired_signature_says_so(gate: Bench) -> None:
    _, _, body = await gate.ask(bare(signed("x", expires_in=-5)))
    assert json.loads(body)["message"] == "signature is already expired"


async def test_without_a_token_a_sandbox_is_open(gate: Bench) -> None:
    gate.sockets.records["iabc"] = sandbox(access_token=None, secure=False)
    await gate.sockets.listen(greet)
    assert (await gate.ask(bare("/envs")))[0] == 200
    assert (await gate.ask(bare("/files?path=x")))[0] == 200


async def test_a_signed_url_that_lost_its_sandbox(gate: Bench) -> None:
    gate.sockets.records |= {
        f"i{number}": sandbox(f"i{number}", access_token=Secret(f"t{number}")) for number in (1, 2)
    }
    await gate.sockets.listen(greet, sandbox_id="i2")
    url = signed("x", "t2", 60)
    assert (await gate.ask(f"GET {url} HTTP/1.1\r\nHost: engine\r\n\r\n".encode()))[0] == 200
    gate.sockets.interrupt("i2")
    assert (await gate.ask(f"GET {url} HTTP/1.1\r\nHost: engine\r\n\r\n".encode()))[0] == 401
    for wrong in (signed("x", "t9"), signed("x", "t1", -5)):
        status, _, body = await gate.ask(f"GET {wrong} HTTP/1.1\r\nHost: engine\r\n\r\n".encode())
        assert status == 401, body
    assert (await gate.ask(b"GET /files?path=x HTTP/1.1\r\nHost: engine\r\n\r\n"))[2] == b"control"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (bare("/health", port=49999), 200),
        (bare("/execute", method="POST", port=49999), 401),
        (bare("//execute/", method="POST", port=49999), 401),
        (bare("/execute", "X-Access-Token: wrong", method="POST", port=49999), 401),
        (bare("/execute", f"X-Access-Token: {TOKEN}", method="POST", port=49999), 200),
        (bare("/execute", method="OPTIONS", port=49999), 200),
        (bare("/anything", port=49999), 401),
        (bare("/contexts", port=49999), 200),  # E2B's SDKs send no token there
        (bare("/contexts", "X-Access-Token: wrong", port=49999), 401),
    ],
)
async def test_the_code_interpreter(gate: Bench, raw: bytes, status: int) -> None:
    await gate.sockets.listen(greet, port=49999)
    assert (await gate.ask(raw))[0] == status
    gate.sockets.records["iabc"] = sandbox(traffic_token=Secret("traffic"))
    assert (await gate.ask(raw))[0] == (401 if status == 401 else 403), "private ones want the other token too"


async def test_a_sandbox_without_a_code_interpreter_says_so(gate: Bench) -> None:
    status, _, body = await gate.ask(bare("/execute", f"X-Access-Token: {TOKEN}", method="POST", port=49999))
    assert status == 501
    assert "sandyard template build code-interpreter" in json.loads(body)["message"]


async def test_private_previews(gate: Bench) -> None:
    gate.sockets.records["iabc"] = sandbox(traffic_token=Secret("traffic"))
    await gate.sockets.listen(greet, port=8000)
    missing = await gate.ask(bare("/", port=8000))
    wrong = await gate.ask(bare("/", "E2b-Traffic-Access-Token: x", port=8000))
    right = await gate.ask(bare("/", "E2b-Traffic-Access-Token: traffic", port=8000))
    assert (missing[0], wrong[0], right[0]) == (403, 403, 200)
    prefix = "Sandbox is secured with traffic access token. "
    said = [json.loads(page[2])["message"] for page in (missing, wrong)]
    assert said[0] == prefix + "Token header 'e2b-traffic-access-token' is missing"
    assert said[1] == prefix + "Provided token in header 'e2b-traffic-access-token' is invalid"


async def test_what_is_not_there(gate: Bench) -> None:
    status, headers, body = await gate.ask(bare("/x").replace(b"iabc", b"inone"))
    assert status == 502
    assert json.loads(body) == {"code": 502, "message": "The sandbox was not found", "sandboxId": "inone"}
    assert headers["access-control-allow-origin"] == "*"
    _, _, body = await gate.ask(bare("/x", port=3210))
    assert json.loads(body) == {
        "code": 502,
        "message": "The sandbox is running but port is not open",
        "sandboxId": "iabc",
        "port": 3210,
    }


@pytest.mark.parametrize(
    ("raw", "status", "words"),
    [
        (bare("/", BROWSER, port=3210), 502, ["no service running on port", "3210", "iabc"]),
        (bare("/", BROWSER, port=3210).replace(b"iabc", b"inone"), 502, ["Sandbox Not Found", "inone"]),
        (bare("/", BROWSER, port=80).replace(b"iabc", b"iprivate"), 403, ["Missing Traffic Access Token", "iprivate"]),
    ],
)
async def test_people_get_a_page(gate: Bench, raw: bytes, status: int, words: list[str]) -> None:
    gate.sockets.records["iprivate"] = sandbox("iprivate", traffic_token=Secret("t"))
    got, headers, body = await gate.ask(raw)
    assert got == status
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert body.startswith(b"<html")
    assert body.endswith(b"</html>")
    for word in words:
        assert word.encode() in body


async def test_a_page_repeats_no_markup(gate: Bench) -> None:
    raw = f"GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: <script>\r\n{BROWSER}\r\n\r\n".encode()
    assert b"<script>" not in (await gate.ask(raw))[2]


async def test_paused_sandboxes_are_not_found_unless_traffic_wakes_them(gate: Bench) -> None:
    await gate.sockets.listen(greet)
    record = gate.sockets.records["iabc"]
    gate.sockets.records["iabc"] = replace(record, state=State.PAUSED)
    assert (await gate.ask(request()))[0] == 502
    gate.sockets.records["iabc"] = replace(record, state=State.PAUSED, auto_resume=True)
    assert (await gate.ask(bare("/health")))[0] == 502, "asking for its health wakes nobody"
    assert (await gate.ask(bare("/envs")))[0] == 401
    assert not gate.sockets.records["iabc"].running, "nor does who may not come in"
    assert (await gate.ask(request()))[0] == 200
    assert gate.sockets.records["iabc"].running


async def test_the_host_a_user_s_server_sees(gate: Bench) -> None:
    await gate.sockets.listen(greet, port=8000)
    assert (await gate.ask(bare("/a", port=8000)))[2] == b"GET /a HTTP/1.1 engine"
    named = b"GET /a HTTP/1.1\r\nHost: 8000-iabc.example.com\r\n\r\n"
    assert (await gate.ask(named))[2] == b"GET /a HTTP/1.1 8000-iabc.example.com"
    gate.sockets.records["iabc"] = sandbox(network=Network(config={"maskRequestHost": "mine.test:${PORT}"}))
    assert (await gate.ask(named))[2] == b"GET /a HTTP/1.1 mine.test:8000"


async def test_browsers_may_use_the_agent_from_any_page(gate: Bench) -> None:
    asked = bare("/envs", "Access-Control-Request-Method: GET", "Access-Control-Request-Headers: x-a", method="OPTIONS")
    status, headers, _ = await gate.ask(asked)
    assert status == 204
    assert headers["access-control-allow-headers"] == "x-a"
    assert headers["access-control-allow-origin"] == "*"
    assert gate.sockets.dials == 0


async def test_a_bad_port_is_the_client_s_mistake(gate: Bench) -> None:
    status, _, body = await gate.ask(bare("/").replace(b"49983", b"http"))
    assert status == 400
    assert json.loads(body)["code"] == 400


async def test_guesses_cost_the_guesser(gate: Bench) -> None:
    started = time.monotonic()
    seen = set()
    for number in range(80):
        url = f"/files?path={number}&signature=v1_x"
        seen.add((await gate.ask(f"GET {url} HTTP/1.1\r\nHost: engine\r\n\r\n".encode()))[0])
    assert seen == {401, 429} or time.monotonic() - started > 5


async def test_a_language_that_the_interpreter_lacks_is_added(gate: Bench) -> None:
    asked: list[str] = []

    def add(template: str | None, language: str) -> str | None:
        asked.append(language)
        return "It is being added." if language == "r" else None

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        language = head.split()[1].removeprefix(b"/execute/").decode()
        status, told = (200, "") if language == "fine" else (400, f"x-missing-language: {language}\r\n")
        writer.write(f"HTTP/1.1 {status} X\r\n{told}content-length: 4\r\nconnection: close\r\n\r\nlost".encode())
        writer.close()

    await gate.sockets.listen(refuse, port=49999)
    await gate.sockets.listen(refuse, port=8000)
    gate.gateway._add_language = add
    status, headers, body = await gate.ask(request("POST", "/execute/r", port=49999))
    assert (status, body) == (400, b"It is being added.")
    assert "x-missing-language" not in headers
    assert (await gate.ask(request("POST", "/execute/cobol", port=49999)))[2] == b"lost"
    assert (await gate.ask(request("POST", "/execute/fine", port=49999)))[2] == b"lost"
    assert (await gate.ask(request("POST", "/execute/java", port=8000)))[2] == b"lost", (
        "no other port is the interpreter's"
    )
    assert asked == ["r", "cobol"]
