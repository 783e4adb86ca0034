from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Query, Request, WebSocket
from fastapi.responses import StreamingResponse
from pydantic import Field

from sandyard.kit import logging as kit_logging
from sandyard.kit.errors import BusyError, NotFoundError
from sandyard.kit.logging import get_logger
from sandyard.platform.api.guard import BODY_VALUES, body_limit, parse_host_name, streams_body
from sandyard.platform.api.outer_middleware import HEADERS
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input
from sandyard.platform.domain.git.errors import CommitMessageError
from sandyard.platform.domain.repositories.errors import ConflictsError
from sandyard.platform.domain.repositories.model import Conflict
from tests.unit.platform.api.sockets import connect, denial
from tests.unit.platform.world import World, client, open_world

log = get_logger(__name__)


class Thing(Input):
    name: str
    sizes: list[int] = Field(default_factory=list)


class Paths(Input):
    paths: list[str]


class TellingError(ConflictsError):
    """Also tries to override fields that are not its own."""

    @property
    def extra(self) -> Mapping[str, object]:
        return {**super().extra, "code": "ok", "status": 200, "operationId": "gop_1"}


def routes() -> APIRouter:
    router = api_router("test")

    @router.get("/fail", name="test.fail")
    async def fail() -> None:
        raise ValueError("hunter2 is in the details")

    @router.get("/half", name="test.half")
    async def half() -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            yield b"half"
            raise ValueError("broken")

        return StreamingResponse(body())

    @router.get("/missing", name="test.missing")
    async def missing() -> None:
        raise NotFoundError("There is no \udc80 thing.")

    @router.get("/conflicts", name="test.conflicts")
    async def conflicts() -> None:
        raise TellingError([Conflict("a\udc80.py", "content")])

    @router.get("/busy", name="test.busy")
    async def busy() -> None:
        raise BusyError

    @router.post("/things", name="test.create")
    async def create(body: Thing, size: Annotated[int, Query(le=5)] = 1) -> Thing:
        return body

    @router.post("/few", name="test.few")
    @body_limit(size=2048, values=100)
    async def few(body: Paths) -> int:
        return len(body.paths)

    @router.put("/upload", name="test.upload")
    @streams_body
    async def upload(request: Request) -> int:
        return sum([len(piece) async for piece in request.stream()])

    @router.get("/log", name="test.log")
    async def logs() -> None:
        log.info("thing_seen")

    @router.websocket("/socket", name="test.socket")
    async def socket(socket: WebSocket, how: str) -> None:
        if how == "accept":
            await socket.accept()
        if how == "late":
            await socket.accept()
            raise NotFoundError("It is gone.")
        if how == "crash":
            raise ValueError
        raise NotFoundError("There is none.")

    return router


@pytest.fixture
async def web(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with client(world.app(routes())) as made:
        yield made


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, object]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, object] = answer.json()
    assert body["status"] == status and body["code"] == code and body["type"] == f"urn:sandyard:problem:{code}"
    assert body["requestId"] == answer.headers["x-request-id"] and body["title"] and body["detail"]
    return body


async def test_every_answer_has_request_id_and_security_headers(web: httpx.AsyncClient) -> None:
    for path in ("/health", "/api/nowhere", "/api/v1/me", "/api/v1/fail"):
        answer = await web.get(path)
        assert answer.headers["x-request-id"].startswith("req_")
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-1.2_X", True), ("a" * 40, True), ("a" * 41, False), ("a b", False), ("ä", False), ("", False)],
)
async def test_keeps_valid_request_id(web: httpx.AsyncClient, given: str, kept: bool) -> None:
    answer = await web.get("/health", headers={"X-Request-Id": given.encode()})
    assert (answer.headers["x-request-id"] == given) is kept


async def test_log_events_contain_request_id(web: httpx.AsyncClient, tmp_path: Path) -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    try:
        with (tmp_path / "log").open("w") as stream:
            kit_logging.configure("info", as_json=True, stream=stream)
            await web.get("/api/v1/log", headers={"X-Request-Id": "mine"})
            log.info("thing_after")
    finally:
        root.handlers[:], root.level = before
    entries = {entry["event"]: entry for entry in map(json.loads, (tmp_path / "log").read_text().splitlines())}
    assert entries["thing_seen"]["request"] == "mine" and "request" not in entries["thing_after"]


async def test_unexpected_error_shows_no_details(web: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    body = problem(await web.get("/api/v1/fail"), 500, "internal")
    assert "hunter2" not in json.dumps(body)
    assert [record.message for record in caplog.records if record.name.startswith("sandyard")] == [
        "request_failed"
    ] and "hunter2" in caplog.text


async def test_aborts_incomplete_answer(web: httpx.AsyncClient) -> None:
    with pytest.raises(ValueError, match="broken"):
        await web.get("/api/v1/half")


async def test_errors_are_problems(web: httpx.AsyncClient) -> None:
    problem(await web.get("/api/nowhere"), 404, "not_found")
    answer = await web.delete("/api/v1/things")
    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert "\\udc80" in (await web.get("/api/v1/missing")).text
    answer = await web.get("/api/v1/busy")
    problem(answer, 503, "busy")
    assert answer.headers["retry-after"] == "1"
    problem(await web.get("/health/"), 404, "not_found")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b"[]", "body"),
        (b"{}", "name"),
        (b'{"name": 1}', "name"),
        (b'{"name": "a", "color": 1}', "color"),
        (b'{"name": "a\\u0000"}', "body"),
        (b'{"name": "\\ud800"}', "body"),
        (b'{"name": "a", "sizes": [1, "x"]}', "sizes.1"),
        (b"[" * 4_000, "body"),
        (b"\xff\xfe", "body"),
    ],
)
async def test_bad_body_names_field(web: httpx.AsyncClient, body: bytes, field: str) -> None:
    answer = await web.post("/api/v1/things", content=body, headers={"Content-Type": "application/json"})
    found = problem(answer, 400, "invalid_argument")
    if "errors" in found:
        assert found["errors"][0]["field"] == field and found["errors"][0]["message"]  # type: ignore[index]


async def test_bad_query_names_field(web: httpx.AsyncClient) -> None:
    found = problem(await web.post("/api/v1/things?size=9", json={"name": "a"}), 400, "invalid_argument")
    assert found["errors"] == [{"field": "size", "message": "Must be at most 5"}]
    for path in ("/api/v1/%00", "/health?x=%00"):
        problem(await web.get(path), 400, "invalid_argument")


async def test_limits_size_of_body(web: httpx.AsyncClient) -> None:
    large = b'{"name": "' + b"x" * (1 << 20) + b'"}'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 65536):
            yield large[start : start + 65536]

    headers = {"Content-Type": "application/json"}
    problem(await web.post("/api/v1/things", content=large, headers=headers), 413, "too_large")
    problem(await web.post("/api/v1/things", content=pieces(), headers=headers), 413, "too_large")
    assert (await web.put("/api/v1/upload", content=pieces())).json() == len(large)


async def test_limits_values_of_body(web: httpx.AsyncClient) -> None:
    async def pieces(text: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(text), 1000):
            yield text[start : start + 1000]

    headers = {"Content-Type": "application/json"}
    unknown = json.dumps({str(number): 0 for number in range(BODY_VALUES + 1)}).encode()
    for content in (unknown, pieces(unknown)):
        found = problem(await web.post("/api/v1/things", content=content, headers=headers), 413, "too_large")
        assert "5,000" in str(found["detail"])
    problem(await web.post("/mcp", content=b"[" + b"{}," * BODY_VALUES, headers=headers), 401, "unauthenticated")
    sizes = list(range(BODY_VALUES - 10))
    assert (await web.post("/api/v1/things", json={"name": "a", "sizes": sizes})).json()["sizes"] == sizes
    text = json.dumps({"name": "a, [{" * 100_000}).encode()
    assert (await web.post("/api/v1/things", content=pieces(text), headers=headers)).json()["name"] == "a, [{" * 100_000
    utf16 = json.dumps({"name": '"', "sizes": sizes}).encode("utf-16")
    problem(await web.post("/api/v1/things", content=utf16, headers=headers), 400, "invalid_argument")


async def test_route_may_change_limits(web: httpx.AsyncClient) -> None:
    paths = {"paths": ["x"] * 50}
    assert (await web.post("/api/v1/few", json=paths)).json() == 50
    found = problem(await web.post("/api/v1/few", json={"paths": ["x"] * 101}), 413, "too_large")
    assert "100" in str(found["detail"])
    found = problem(await web.post("/api/v1/few", json={"paths": ["x" * 3000]}), 413, "too_large")
    assert str(found["detail"]).endswith("the limit is 2 KiB.")


async def test_reports_only_first_errors(web: httpx.AsyncClient) -> None:
    found = problem(
        await web.post("/api/v1/things", json={"name": "a", "sizes": ["x"] * 1020}), 400, "invalid_argument"
    )
    assert [error["field"] for error in found["errors"]] == [f"sizes.{number}" for number in range(20)]  # type: ignore[attr-defined]
    assert str(found["detail"]).endswith(" There are 1,000 more errors.")
    found = problem(await web.post("/api/v1/things", json={"name": "a", "x" * 5000: 1}), 400, "invalid_argument")
    assert "more errors" not in str(found["detail"]) and len(found["errors"][0]["field"]) < 500  # type: ignore[index]
    names = {str(number): 0 for number in range(1000)}
    found = problem(await web.post("/api/v1/things", json=names), 400, "invalid_argument")
    assert found["errors"] == [{"field": "body", "message": "Must not have more than 200 fields"}]


async def test_rejects_unknown_host_names(tmp_path: Path) -> None:
    async with open_world(tmp_path, public_url="https://yard.example.org/") as world:
        app = world.app(routes())
        for base in ("http://localhost", "http://127.0.0.1:8700", "http://[::1]:1", "https://Yard.Example.org"):
            async with client(app, base=base) as web:
                answer = await web.get("/health")
                assert answer.status_code == 200 and "strict-transport-security" in answer.headers
        for base in ("http://evil.example", "http://localhost.evil.example", "http://127.0.0.2", "http://example.org"):
            async with client(app, base=base) as web:
                problem(await web.get("/health"), 421, "wrong_host")
                problem(await web.get("/health", headers={"Host": ""}), 421, "wrong_host")
        sent = await connect(app, "/api/v1/socket?how=accept", {"host": "evil.example"})
        assert [message["type"] for message in sent] == ["websocket.close"]


async def test_accepts_any_host_name_when_bound_to_all_addresses(tmp_path: Path) -> None:
    async with open_world(tmp_path, host="0.0.0.0") as world, client(world.app(), base="http://yard.lan") as web:
        assert (await web.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("value", "name"),
    [("[::1]:8700", "::1"), ("[::1]", "::1"), (" LocalHost:1", "localhost"), ("", ""), ("a:b:c", "a")],
)
def test_host_names(value: str, name: str) -> None:
    assert parse_host_name(value) == name


async def test_refuses_socket_with_problem(world: World) -> None:
    app = world.app(routes())
    status, body = denial(await connect(app, "/api/v1/socket?how=refuse", {"x-request-id": "mine"}))
    assert status == 404 and body["code"] == "not_found" and body["requestId"] == "mine"
    status, body = denial(await connect(app, "/api/v1/socket"))
    assert status == 400 and body["errors"][0]["field"] == "how"
    sent = await connect(app, "/api/v1/socket?how=late")
    assert sent[-1]["type"] == "websocket.close" and sent[-1]["code"] == 4404 and sent[-1]["reason"] == "It is gone."
    sent = await connect(app, "/api/v1/socket?how=crash")
    assert sent == [{"type": "websocket.close", "code": 1011, "reason": "Internal error."}]


async def test_streams_are_not_buffered(world: World) -> None:
    router, gate = api_router("test"), asyncio.Event()

    @router.get("/slow", name="test.slow")
    async def slow() -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            yield b"first"
            await gate.wait()
            yield b"second"

        return StreamingResponse(body())

    pieces = asyncio.Queue[bytes]()

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.body":
            pieces.put_nowait(message.get("body", b""))  # type: ignore[arg-type]

    async def receive() -> dict[str, object]:
        await asyncio.sleep(3600)
        return {}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/slow",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "root_path": "",
        "server": ("127.0.0.1", 8700),
        "http_version": "1.1",
    }
    answering = asyncio.create_task(world.app(router)(scope, receive, send))  # type: ignore[arg-type]
    assert await asyncio.wait_for(pieces.get(), 30) == b"first"
    gate.set()
    assert await asyncio.wait_for(pieces.get(), 30) == b"second"
    await asyncio.wait_for(answering, 30)


async def test_an_error_may_tell_more_but_not_otherwise(world: World) -> None:
    async with client(world.app(routes()), await world.create_person("maria")) as web:
        answer = await web.get("/api/v1/conflicts")
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (409, 409, "conflicts")
    assert problem["files"] == [{"path": "a\udc80.py", "kind": "content", "detail": ""}]
    assert problem["choices"] == ["agent", "give_up"] and problem["operationId"] == "gop_1"
    assert CommitMessageError("no").extra == {} and CommitMessageError("no", "fix: x").extra == {"suggestion": "fix: x"}
