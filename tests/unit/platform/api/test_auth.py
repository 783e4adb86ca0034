from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import WebSocket

from sandyard.platform.api.auth import COOKIE, KEY_HEADER, AdminCaller, AdminStreamCaller, Caller, StreamCaller
from sandyard.platform.api.routers import api_router
from tests.unit.platform.api.sockets import connect, denial
from tests.unit.platform.world import PASSWORD, ROOT, World, client, sign_in

router = api_router("test")


@router.get("/who", name="test.who")
async def who(caller: Caller) -> str:
    return f"{caller.name} {caller.means}"


@router.post("/change", name="test.change")
async def change(caller: Caller) -> str:
    return caller.name


@router.get("/admin", name="test.admin")
async def admin(caller: AdminCaller) -> str:
    return caller.name


@router.get("/stream", name="test.stream")
async def stream(caller: StreamCaller) -> str:
    return f"{caller.name} {caller.means}"


@router.get("/admin-stream", name="test.admin_stream")
async def admin_stream(caller: AdminStreamCaller) -> str:
    return caller.name


@router.websocket("/socket", name="test.socket")
async def socket(socket: WebSocket, caller: StreamCaller) -> None:
    await socket.accept()
    await socket.send_text(caller.name)


@pytest.fixture
async def web(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with client(world.app(router)) as made:
        yield made


async def test_tokens(world: World, web: httpx.AsyncClient) -> None:
    maria, chief = await world.create_person("maria"), await world.create_person("chief", "admin")
    answer = await web.get("/api/v1/who", headers=maria.headers)
    assert answer.json() == f"maria {maria.principal.means}"
    assert (await web.post("/api/v1/change", headers=maria.headers)).json() == "maria"
    assert (await web.get("/api/v1/admin", headers=chief.headers)).json() == "chief"
    answer = await web.get("/api/v1/admin", headers=maria.headers)
    assert answer.status_code == 403 and answer.json()["code"] == "forbidden"


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer sy_wrong", "Basic YTpi", "sy_x", "", "Bearer \xe4"])
async def test_rejects_invalid_token(web: httpx.AsyncClient, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    for path in ("/api/v1/who", "/api/v1/admin", "/api/v1/stream"):
        answer = await web.get(path, headers=headers)
        assert answer.status_code == 401 and answer.json()["code"] == "unauthenticated"
        assert answer.headers["www-authenticate"] == 'Bearer realm="sandyard"'


async def test_rejects_bad_token_despite_valid_cookie(world: World, web: httpx.AsyncClient) -> None:
    maria = await world.create_person("maria")
    await sign_in(web, token=maria.token)
    assert (await web.get("/api/v1/who")).status_code == 200
    assert (await web.get("/api/v1/who", headers={"Authorization": "Bearer sy_x"})).status_code == 401


async def test_signs_in_and_out_with_cookie_and_key(world: World, web: httpx.AsyncClient) -> None:
    await world.create_person("maria", password=PASSWORD)
    answer = await web.post("/api/v1/login", json={"name": "maria", "password": PASSWORD})
    assert answer.status_code == 200 and answer.json()["user"]["name"] == "maria"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie and "secure" not in cookie
    key = answer.json()["key"]
    assert key not in cookie
    web.headers[KEY_HEADER] = key
    assert (await web.get("/api/v1/who")).json().startswith("maria cookie:lgn_")
    assert (await web.post("/api/v1/change")).status_code == 200
    assert (await web.post("/api/v1/logout")).status_code == 204
    web.cookies[COOKIE] = cookie.partition(";")[0].partition("=")[2]
    assert (await web.get("/api/v1/who")).status_code == 401


async def test_rejects_cookie_without_its_key(world: World, web: httpx.AsyncClient) -> None:
    """A program on another port of the user's machine gets the cookie."""
    maria, otto = await world.create_person("maria"), await world.create_person("otto")
    ottos_key = (await world.users.login(token=otto.token)).key.reveal()
    older_key = (await world.users.login(token=maria.token)).key.reveal()
    await web.post("/api/v1/login", json={"token": maria.token})
    given: list[dict[str, str]] = [
        {},
        *({KEY_HEADER: key} for key in ("1", "", web.cookies[COOKIE], ottos_key, older_key)),
    ]
    for headers in given:
        for method, path in (
            ("GET", "who"),
            ("POST", "change"),
            ("GET", "stream"),
            ("GET", "me"),
            ("POST", "tokens"),
            ("POST", "tickets"),
            ("POST", "logout"),
        ):
            answer = await web.request(method, f"/api/v1/{path}", headers=headers, json={"name": "stolen"})
            assert answer.status_code == 401 and answer.json()["code"] == "unauthenticated", (path, headers)
            assert "set-cookie" not in answer.headers


async def test_cookies_set_by_other_programs_change_nothing(world: World, web: httpx.AsyncClient) -> None:
    """Programs on other ports can add cookies of the same name, also valid ones of other users, but cannot know the key."""
    maria, otto = await world.create_person("maria"), await world.create_person("otto")
    key = (await sign_in(web, token=maria.token))["key"]
    own = f"{COOKIE}={web.cookies[COOKIE]}"
    login = await world.users.login(token=otto.token)
    foreign = f"{COOKIE}={login.cookie.reveal()}"
    web.cookies.clear()
    for cookie in (f"{foreign}; {own}", f"{own}; {foreign}", f"a=1;{own};{foreign}; {COOKIE}=; {COOKIE}"):
        answer = await web.get("/api/v1/who", headers={"cookie": cookie, KEY_HEADER: key})
        assert answer.json().startswith("maria cookie:"), cookie
    for cookie in (foreign, f"x{own}", f"{COOKIE}=", ""):
        answer = await web.get("/api/v1/who", headers={"cookie": cookie, KEY_HEADER: key})
        assert answer.status_code == 401, cookie


async def test_ticket_opens_one_stream(world: World, web: httpx.AsyncClient) -> None:
    maria = await world.create_person("maria")

    async def ticket() -> str:
        answer = await web.post("/api/v1/tickets", headers=maria.headers)
        assert answer.status_code == 201
        return str(answer.json()["ticket"])

    one = await ticket()
    assert (await web.get(f"/api/v1/who?ticket={one}")).status_code == 401
    assert (await web.get(f"/api/v1/stream?ticket={one}")).json().startswith("maria token:tok_")
    assert (await web.get(f"/api/v1/stream?ticket={one}")).status_code == 401
    assert (await web.get(f"/api/v1/admin-stream?ticket={await ticket()}")).status_code == 403
    two = await ticket()
    await world.clock.advance(30)
    assert (await web.get(f"/api/v1/stream?ticket={two}")).status_code == 401
    assert (await web.get("/api/v1/stream", headers=maria.headers)).status_code == 200


async def test_sockets(world: World) -> None:
    maria, app = await world.create_person("maria"), world.app(router)
    login = await world.users.login(token=maria.token)
    ticket = (await world.users.create_ticket(maria.principal)).value.reveal()
    cookie = {"cookie": f"{COOKIE}={login.cookie.reveal()}"}
    for url, headers in (
        ("/api/v1/socket", maria.headers),
        (f"/api/v1/socket?ticket={ticket}", {}),
    ):
        sent = await connect(app, url, headers)
        assert sent[0]["type"] == "websocket.accept" and sent[1]["text"] == "maria", sent
    assert denial(await connect(app, "/api/v1/socket"))[0] == 401
    assert denial(await connect(app, f"/api/v1/socket?ticket={ticket}"))[0] == 401
    for headers in ({}, {"origin": "http://localhost:8700"}, {KEY_HEADER: "1"}, {KEY_HEADER: login.key.reveal()}):
        status, body = denial(await connect(app, "/api/v1/socket", {**cookie, **headers}))
        assert status == 401 and "ticket" in body["detail"]


async def test_disabled_user_loses_access(world: World, web: httpx.AsyncClient) -> None:
    maria = await world.create_person("maria")
    await sign_in(web, token=maria.token)
    assert (await web.get("/api/v1/who")).status_code == 200
    await world.users.update(ROOT, maria.principal.user_id, disabled=True)
    assert (await web.get("/api/v1/who")).status_code == 401
    assert (await web.get("/api/v1/who", headers=maria.headers)).status_code == 401


async def test_limits_size_of_sign_in(web: httpx.AsyncClient) -> None:
    """Anybody may send a sign-in request, so a large one or one with many fields is rejected before it is parsed."""
    many = {str(number): 0 for number in range(100)}
    for body in ({"name": "x" * 20_000}, many):
        assert (await web.post("/api/v1/login", json=body)).status_code == 413
    escaped = b'{"name": "maria", "password": "%s"}' % (b"\\ud83d\\ude00" * 1000)
    answer = await web.post("/api/v1/login", content=escaped, headers={"Content-Type": "application/json"})
    assert answer.status_code == 401
