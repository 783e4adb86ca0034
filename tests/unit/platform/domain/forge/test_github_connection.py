"""A connection to the API: waits for limits, retries when safe, caches answers, and explains errors."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from sandyard.kit import dns_lookup
from sandyard.kit.destinations import Destinations
from sandyard.kit.secret import Secret
from sandyard.platform.domain.forge import github_connection
from sandyard.platform.domain.forge.app_tokens import FixedToken
from sandyard.platform.domain.forge.errors import (
    ForgeError,
    ForgeForbiddenError,
    ForgeInvalidError,
    ForgeNotFoundError,
    ForgeRateLimitedError,
    ForgeRefusedError,
    ForgeUnauthorizedError,
    ForgeUnreachableError,
)
from sandyard.platform.domain.forge.github_connection import GitHubConnection, ResponseCache
from sandyard.platform.domain.forge.github_errors import extract_message
from tests.unit.platform.domain.forge.clocks import HurriedClock
from tests.unit.platform.domain.forge.scripted import Scripted

TOKEN = "github_pat_planted_0123456789"


@pytest.fixture
def clock() -> HurriedClock:
    return HurriedClock()


@pytest.fixture
def api(clock: HurriedClock) -> Iterator[Scripted]:
    with Scripted(clock) as made:
        yield made


@pytest.fixture
async def line(api: Scripted, clock: HurriedClock) -> AsyncIterator[GitHubConnection]:
    made = GitHubConnection(api.url, FixedToken(Secret(TOKEN)), clock, ResponseCache(), "one")
    yield made
    await made.close()


async def get(line: GitHubConnection, path: str = "/repos/acme/site", wait: float = 60.0) -> object:
    return (await line.request("GET", path, max_wait_s=wait)).json


def define_names(monkeypatch: pytest.MonkeyPatch, **hosts: str) -> list[str]:
    """Define what names resolve to (underscores stand for dots), and return the list of names that were resolved."""
    resolved: list[str] = []

    async def resolve(host: str) -> list[dns_lookup.Address]:
        resolved.append(host)
        if (name := host.replace(".", "_")) in hosts:
            return [ipaddress.ip_address(hosts[name])]
        raise OSError("unknown")

    monkeypatch.setattr(dns_lookup, "query_name_servers", resolve)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return resolved


class TestWhere:
    @pytest.mark.parametrize("named", ["127.0.0.1", "forge.example"])
    async def test_rejects_private_address(
        self, api: Scripted, clock: HurriedClock, monkeypatch: pytest.MonkeyPatch, named: str
    ) -> None:
        define_names(monkeypatch, forge_example="127.0.0.1")
        url = api.url.replace("127.0.0.1", named)
        line = GitHubConnection(url, FixedToken(Secret(TOKEN)), clock, ResponseCache(), "one", Destinations())
        with pytest.raises(ForgeForbiddenError, match="private network"):
            await get(line)
        await line.close()
        assert api.requests == []

    async def test_connects_to_checked_address(
        self, api: Scripted, clock: HurriedClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resolved = define_names(monkeypatch, forge_example="127.0.0.1")
        url = api.url.replace("127.0.0.1", "forge.example")
        destinations = Destinations(["127.0.0.0/8"])
        line = GitHubConnection(url, FixedToken(Secret(TOKEN)), clock, ResponseCache(), "one", destinations)
        api.answer(body={"id": 1})
        api.answer(body={"id": 2})
        assert await get(line) == {"id": 1}
        await line.close()
        assert await get(line, "/repos/acme/other") == {"id": 2}
        await line.close()
        assert [item.headers["host"].partition(":")[0] for item in api.requests] == ["forge.example"] * 2
        assert resolved.count("forge.example") == 2, "once per request, and not again when connecting"

    async def test_unknown_host(self, api: Scripted, clock: HurriedClock, monkeypatch: pytest.MonkeyPatch) -> None:
        define_names(monkeypatch)
        line = GitHubConnection("https://x.example", FixedToken(None), clock, ResponseCache(), "one", Destinations())
        with pytest.raises(ForgeUnreachableError, match="could not be reached"):
            await get(line)

    async def test_shows_messages_of_github_only(self, line: GitHubConnection, api: Scripted) -> None:
        for api.is_github in (True, False):
            api.answer(403, {"message": "internal words"})
            with pytest.raises(ForgeForbiddenError) as refused:
                await get(line)
            assert ("internal words" in refused.value.message) is api.is_github


class TestRedirects:
    async def test_follows_renamed_repository(self, line: GitHubConnection, api: Scripted) -> None:
        api.answer(301, Location="/api/v3/repositories/7")
        api.answer(307, Location=f"{api.url}/repositories/8")
        api.answer(body={"id": 8})
        assert await get(line) == {"id": 8}
        assert [item.path for item in api.requests] == [
            "/v3/repos/acme/site",
            "/v3/repositories/7",
            "/v3/repositories/8",
        ]

    async def test_ends_redirect_loop(self, line: GitHubConnection, api: Scripted) -> None:
        for number in range(100):
            api.answer(301, Location=f"/api/v3/repositories/{number}")
        with pytest.raises(ForgeRefusedError, match="redirects more than 3 times"):
            await get(line)
        assert len(api.requests) == 4

    @pytest.mark.parametrize("method", ["GET", "POST"])
    async def test_never_follows_to_another_origin(
        self, line: GitHubConnection, api: Scripted, clock: HurriedClock, method: str
    ) -> None:
        with Scripted(clock) as other:
            api.answer(307, Location=f"{other.url}/admin")
            with pytest.raises(ForgeRefusedError) as refused:
                await line.request(method, "/repos/acme/site", max_wait_s=0)
            assert other.requests == []
            for item in (api, other):
                assert item.url.removesuffix("/api/v3") in refused.value.message
        assert len(api.requests) == 1

    @pytest.mark.parametrize("target", ["https://127.0.0.1:{port}/", "http://localhost:{port}/", "//127.0.0.1/"])
    async def test_origin_is_scheme_host_and_port(self, line: GitHubConnection, api: Scripted, target: str) -> None:
        api.answer(302, Location=target.format(port=api.url.split(":")[2].partition("/")[0]))
        with pytest.raises(ForgeRefusedError, match="is not followed"):
            await get(line)


async def test_response_that_never_ends_is_a_timeout(clock: HurriedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(github_connection, "REQUEST_SECONDS", 0.05)
    request_count = 0

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal request_count
        request_count += 1
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.005)

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        line = GitHubConnection(url, FixedToken(None), clock, ResponseCache(), "one")
        with pytest.raises(ForgeUnreachableError, match="did not respond in time"):
            async with asyncio.timeout(30):
                await get(line)
        await line.close()
        async with asyncio.timeout(30):
            # on a busy machine, the server accepts the last connection after its request has ended
            while request_count < github_connection.MAX_ATTEMPTS:
                await asyncio.sleep(0.01)
    assert request_count == github_connection.MAX_ATTEMPTS
    assert line.active_requests == 0


class TestLimits:
    async def test_reads_budget_from_headers(self, line: GitHubConnection, api: Scripted, clock: HurriedClock) -> None:
        assert line.rate_limit.budget is None
        api.answer(body={}, **api.limit(4321, 1800))
        await get(line)
        budget = line.rate_limit.budget
        assert budget is not None
        assert (budget.limit, budget.remaining, budget.low) == (5000, 4321, False)
        assert budget.resets_at.timestamp() == clock.now() + 1800
        clock.pass_(1801)
        assert line.rate_limit.budget is None

    async def test_warns_of_low_budget_once_per_window(
        self, line: GitHubConnection, api: Scripted, clock: HurriedClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        for remaining in (101, 99, 98):
            api.answer(body={}, **api.limit(remaining, 600))
            await get(line)
        clock.pass_(700)
        api.answer(body={}, **api.limit(5, 3600))
        await get(line)
        assert [record.message for record in caplog.records].count("forge_budget_low") == 2

    async def test_waits_for_exhausted_budget(self, line: GitHubConnection, api: Scripted, clock: HurriedClock) -> None:
        api.answer(403, {"message": "API rate limit exceeded for user ID 1."}, **api.limit(0, 40))
        api.answer(body={"id": 1}, **api.limit(4999, 3640))
        assert await get(line) == {"id": 1}
        assert sum(clock.waits) == pytest.approx(41)

    async def test_does_not_send_request_without_budget(
        self, line: GitHubConnection, api: Scripted, clock: HurriedClock
    ) -> None:
        api.answer(body={}, **api.limit(0, 3000))
        await get(line)
        with pytest.raises(ForgeRateLimitedError) as refused:
            await get(line)
        assert len(api.requests) == 1
        assert refused.value.status == 503
        assert refused.value.until is not None
        assert refused.value.until.timestamp() == pytest.approx(clock.now() + 3001)
        assert refused.value.retry_after == pytest.approx(3001)
        assert "until 2023-11-14 23:03:21 UTC" in refused.value.message
        api.answer(body={"id": 2}, **api.limit(4999, 3600))
        assert await get(line, wait=3600) == {"id": 2}  # a caller with a longer timeout

    async def test_waits_correctly_if_clock_of_forge_is_wrong(
        self, line: GitHubConnection, api: Scripted, clock: HurriedClock
    ) -> None:
        behind = HurriedClock(clock.now() - 7200)
        api.clock = behind
        api.answer(429, {"message": "API rate limit exceeded"}, **api.limit(0, 30))
        api.answer(body={}, **api.limit(4999, 3600))
        await get(line)
        assert sum(clock.waits) == pytest.approx(31)

    @pytest.mark.parametrize("status", [403, 429])
    async def test_waits_for_secondary_limit(
        self, line: GitHubConnection, api: Scripted, clock: HurriedClock, status: int
    ) -> None:
        api.answer(status, {"message": "You have exceeded a secondary rate limit."}, Retry_After="17")
        api.answer(201, {"id": 3})
        answer = await line.request("POST", "/repos/acme/site/pulls", body={}, max_wait_s=60)
        assert answer.json == {
            "id": 3
        }  # even a request that must not be repeated, because the first one was not accepted
        assert clock.waits == [17.0]

    async def test_backs_off_from_secondary_limit_without_duration(
        self, line: GitHubConnection, api: Scripted, clock: HurriedClock
    ) -> None:
        for _ in range(2):
            api.answer(403, {"message": "You have exceeded a secondary rate limit. Please wait a few minutes."})
        api.answer(body={})
        await get(line, wait=3600)
        assert clock.waits == [60.0, 120.0]

    async def test_limit_beyond_timeout_fails_at_once_for_all(
        self, line: GitHubConnection, api: Scripted, clock: HurriedClock
    ) -> None:
        api.answer(403, {"message": "You have exceeded a secondary rate limit."}, Retry_After="600")
        with pytest.raises(ForgeRateLimitedError):
            await get(line)
        with pytest.raises(ForgeRateLimitedError):
            await get(line, "/repos/acme/other")
        assert clock.waits == []
        assert len(api.requests) == 1

    async def test_gives_up_on_repeated_zero_retry_after(
        self, line: GitHubConnection, api: Scripted, clock: HurriedClock
    ) -> None:
        for _ in range(100):
            api.answer(429, {"message": "slow down"}, Retry_After="0")
        with pytest.raises(ForgeRateLimitedError):
            await get(line, wait=20)
        assert len(api.requests) <= 21

    @pytest.mark.parametrize("reset", ["0", "999999999999", "100000000000"])
    async def test_limits_absurd_reset(
        self, line: GitHubConnection, api: Scripted, clock: HurriedClock, reset: str
    ) -> None:
        headers = {**api.limit(0, 0), "X_RateLimit_reset": reset}
        api.answer(body={"id": 1}, **headers)
        assert await get(line) == {"id": 1}
        with pytest.raises(ForgeRateLimitedError) as refused:
            await get(line, wait=0)
        assert refused.value.retry_after is not None
        assert 0 < refused.value.retry_after <= 24 * 3600 + 1

    @pytest.mark.parametrize(
        ("retry_after", "date"),
        [
            ("Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 +2359"),
            ("Fri, 31 Dec 9999 23:59:59 -2359", None),
            ("Fri, 31 Dec 99999999999999999999 23:59:59 GMT", None),
            ("9" * 400, None),
        ],
    )
    async def test_limits_absurd_retry_after(
        self, line: GitHubConnection, api: Scripted, clock: HurriedClock, retry_after: str, date: str | None
    ) -> None:
        dated = {} if date is None else {"Date": date}
        api.answer(429, {"message": "slow down"}, Retry_After=retry_after, **dated)
        with pytest.raises(ForgeRateLimitedError) as refused:
            await get(line, wait=0)
        assert refused.value.until is not None
        assert refused.value.until.timestamp() <= clock.now() + 24 * 3600
        clock.pass_(24 * 3600 + 1)
        api.answer(body={"id": 1})
        assert await get(line) == {"id": 1}


class TestFaults:
    async def test_retries_get_three_times(self, line: GitHubConnection, api: Scripted, clock: HurriedClock) -> None:
        api.answer(502)
        api.answer(503)
        api.answer(body={"id": 4})
        assert await get(line) == {"id": 4}
        assert clock.waits == [1.0, 2.0]

    async def test_gives_up_after_three_times(self, line: GitHubConnection, api: Scripted) -> None:
        for _ in range(4):
            api.answer(502)
        with pytest.raises(ForgeUnreachableError, match=r"failed internally \(502\)"):
            await get(line)
        assert len(api.requests) == 3

    async def test_honors_retry_after_of_503(self, line: GitHubConnection, api: Scripted, clock: HurriedClock) -> None:
        api.answer(503, Retry_After="30")
        api.answer(body={})
        await get(line)
        assert clock.waits == [30.0]

    async def test_does_not_retry_unsafe_request(self, line: GitHubConnection, api: Scripted) -> None:
        api.answer(502)
        with pytest.raises(ForgeUnreachableError):
            await line.request("POST", "/repos/acme/site/issues/1/comments", body={"body": "x"}, max_wait_s=60)
        assert len(api.requests) == 1

    async def test_unreachable_host(self, clock: HurriedClock) -> None:
        with Scripted(clock) as gone:
            url = gone.url
        line = GitHubConnection(url, FixedToken(Secret(TOKEN)), clock, ResponseCache(), "one")
        with pytest.raises(ForgeUnreachableError, match=r"127\.0\.0\.1 could not be reached"):
            await get(line)
        assert clock.waits == [1.0, 2.0]
        await line.close()

    @pytest.mark.parametrize("content", [b"<html>a proxy's page</html>", b'{"half": '])
    async def test_rejects_answer_that_is_not_json(self, line: GitHubConnection, api: Scripted, content: bytes) -> None:
        api.answer(200, content)
        with pytest.raises(ForgeUnreachableError, match="did not respond like GitHub"):
            await get(line)

    async def test_limits_size_of_answer(self, line: GitHubConnection, api: Scripted) -> None:
        for _ in range(3):
            api.answer(200, b" " * ((16 << 20) + 1))
        with pytest.raises(ForgeUnreachableError, match="larger than any response"):
            await get(line)

    async def test_rejects_compressed_answer(self, line: GitHubConnection, api: Scripted) -> None:
        for _ in range(3):
            api.answer(200, b"x", Content_Encoding="gzip")
        with pytest.raises(ForgeUnreachableError, match="encoding"):
            await get(line)
        assert api.requests[0].headers["accept-encoding"] == "identity"


class TestPages:
    async def test_reads_pages_from_link_header(self, line: GitHubConnection, api: Scripted) -> None:
        links = '<https://api/x?per_page=100&page=2>; rel="next", <https://api/x?page=7&per_page=100>; rel="last"'
        api.answer(body=[], Link=links)
        answer = await line.request("GET", "/repos/acme/site", max_wait_s=0)
        assert (answer.next, answer.last) == (2, 7)

    async def test_hostile_link_header_is_cheap(self, line: GitHubConnection, api: Scripted) -> None:
        api.answer(body=[], Link="<?page=1" * 7000)  # takes a backtracking regular expression more than a minute
        async with asyncio.timeout(20):
            answer = await line.request("GET", "/repos/acme/site", max_wait_s=0)
        assert (answer.next, answer.last) == (None, None)


class TestRemembering:
    async def test_caches_unchanged_answer(self, line: GitHubConnection, api: Scripted) -> None:
        api.answer(body={"id": 5}, ETag='W/"abc"', Link='<http://elsewhere/x?page=2>; rel="next"')
        first = await line.request("GET", "/repos/acme/site", max_wait_s=0)
        api.answer(304, ETag='W/"abc"')
        again = await line.request("GET", "/repos/acme/site", max_wait_s=0)
        assert again == first
        assert again.next == 2
        assert api.requests[1].headers["if-none-match"] == 'W/"abc"'

    async def test_changed_answer_replaces_cached_one(self, line: GitHubConnection, api: Scripted) -> None:
        for number in (1, 2):
            api.answer(body={"id": number}, ETag=f'"{number}"')
            assert await get(line) == {"id": number}
        api.answer(304)
        assert await get(line) == {"id": 2}
        assert api.requests[2].headers["if-none-match"] == '"2"'

    async def test_cache_is_separate_per_token(self, api: Scripted, clock: HurriedClock) -> None:
        shared = ResponseCache()
        lines = [GitHubConnection(api.url, FixedToken(Secret(name)), clock, shared, name) for name in ("ada", "eve")]
        api.answer(body={"private": "ada's"}, ETag='"1"')
        await get(lines[0])
        api.answer(404, {"message": "Not Found"})
        with pytest.raises(ForgeNotFoundError):
            await get(lines[1])
        assert "if-none-match" not in api.requests[1].headers
        for line in lines:
            await line.close()

    async def test_cache_distinguishes_parameters(self, line: GitHubConnection, api: Scripted) -> None:
        api.answer(body=[1], ETag='"1"')
        await line.request("GET", "/repos/acme/site/pulls", params={"head": "acme:a"}, max_wait_s=0)
        api.answer(body=[2], ETag='"2"')
        await line.request("GET", "/repos/acme/site/pulls", params={"head": "acme:b"}, max_wait_s=0)
        assert "if-none-match" not in api.requests[1].headers


class _Renewing:
    """A token source that has another token when one is rejected."""

    def __init__(self) -> None:
        self.made = 0

    async def get_token(self) -> Secret:
        return Secret(f"token-{self.made}")

    def discard(self, token: Secret) -> bool:
        self.made += 1
        return True

    async def get_permissions(self) -> Mapping[str, str] | None:
        return None


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "body", "headers", "kind", "code", "words"),
        [
            (401, {"message": "Bad credentials"}, {}, ForgeUnauthorizedError, "forge_unauthorized", "expired, revoked"),
            (404, {"message": "Not Found"}, {}, ForgeNotFoundError, "forge_not_found", "may not see it"),
            (
                403,
                {"message": "Resource not accessible by personal access token"},
                {"X_Accepted_GitHub_Permissions": "pull_requests=write,contents=read; issues=write"},
                ForgeForbiddenError,
                "forge_forbidden",
                "'Pull requests: write' and 'Contents: read', or 'Issues: write'",
            ),
            (
                403,
                {"message": "Resource not accessible by integration"},
                {},
                ForgeForbiddenError,
                "forge_forbidden",
                "'Pull requests: read and write'",
            ),
            (
                403,
                {"message": "Resource protected by organization SAML enforcement. You must grant your token access."},
                {"X_GitHub_SSO": "required; url=https://github.com/orgs/acme/sso?authorization_request=AZSCKA"},
                ForgeForbiddenError,
                "forge_forbidden",
                "'Configure SSO'",
            ),
            (
                403,
                {"message": "Repository was archived so is read-only."},
                {},
                ForgeForbiddenError,
                "forge_forbidden",
                "is archived",
            ),
            (
                422,
                {
                    "message": "Validation Failed",
                    "errors": [{"resource": "PullRequest", "code": "custom", "message": "No commits between main and task-x"}],
                },
                {},
                ForgeInvalidError,
                "forge_invalid",
                "rejected these values: No commits between main and task-x.",
            ),
            (
                422,
                {"message": "Validation Failed", "errors": [{"resource": "PullRequest", "field": "head", "code": "invalid"}]},
                {},
                ForgeInvalidError,
                "forge_invalid",
                "head invalid",
            ),
            (405, {"message": "Pull Request is not mergeable"}, {}, ForgeRefusedError, "forge_refused", "not mergeable."),
            (418, None, {}, ForgeError, "forge_failed", "418"),
        ],
    )  # fmt: skip
    async def test_explains_each_error(
        self,
        line: GitHubConnection,
        api: Scripted,
        status: int,
        body: object,
        headers: dict[str, str],
        kind: type[ForgeError],
        code: str,
        words: str,
    ) -> None:
        api.answer(status, body, **headers)
        with pytest.raises(ForgeError) as refused:
            await get(line)
        assert type(refused.value) is kind
        assert refused.value.code == code
        assert words in refused.value.message
        assert "AZSCKA" not in refused.value.message

    async def test_token_never_appears_in_error(
        self, line: GitHubConnection, api: Scripted, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("DEBUG")
        api.answer(422, {"message": f"Header Authorization: Bearer {TOKEN} is odd"})
        with pytest.raises(ForgeInvalidError) as refused:
            await get(line)
        assert TOKEN not in f"{refused.value!r} {refused.value.message} {refused.value.__context__!r} {line!r}"
        assert "***" in refused.value.message
        assert TOKEN not in caplog.text
        assert api.requests[0].headers["authorization"] == f"Bearer {TOKEN}"

    async def test_tries_new_token_once(self, api: Scripted, clock: HurriedClock) -> None:
        line = GitHubConnection(api.url, _Renewing(), clock, ResponseCache(), "one")
        api.answer(401, {"message": "Bad credentials"})
        api.answer(body={"id": 6})
        assert await get(line) == {"id": 6}
        assert [request.headers["authorization"] for request in api.requests] == ["Bearer token-0", "Bearer token-1"]
        for _ in range(2):
            api.answer(401, {"message": "Bad credentials"})
        with pytest.raises(ForgeUnauthorizedError):
            await get(line)
        assert len(api.requests) == 4
        await line.close()


async def test_stores_no_cookies(line: GitHubConnection, api: Scripted) -> None:
    for _ in range(2):
        api.answer(body={}, Set_Cookie="a=b; path=/")
        await get(line)
    assert [item.headers.get("cookie") for item in api.requests] == [None, None]


async def test_concurrent_requests_share_connections(line: GitHubConnection, api: Scripted) -> None:
    for number in range(20):
        api.answer(body={"id": number})
    answers = await asyncio.gather(*(get(line, f"/repos/acme/{number}") for number in range(20)))
    assert len({str(answer) for answer in answers}) == 20
    assert line.active_requests == 0


async def test_graphql_path_on_enterprise_server(line: GitHubConnection, api: Scripted) -> None:
    api.answer(body={"data": {}})
    await line.query_graphql("query { viewer { login } }", {}, max_wait_s=0)
    assert (api.requests[0].method, api.requests[0].path) == ("POST", "/graphql")


def test_token_is_masked_before_message_is_cut() -> None:
    """A cut through the token would leave its beginning."""
    token = "ghp_planted0123456789"
    for start in range(600 - len(token) - 5, 601):
        content = json.dumps({"message": "m" * start + token, "errors": ["n" * start + token]}).encode()
        assert "ghp_" not in extract_message(content, Secret(token))


def test_messages_have_no_control_characters() -> None:
    errors = ["n\x9b1mo\u202e", {"field": "he\x07ad", "code": "bad\r\n\x00"}]
    content = json.dumps({"message": "Validation Failed", "errors": errors}).encode()
    assert extract_message(content) == "n 1mo; he ad bad"
    content = json.dumps({"message": "\x1b[31mred\x1b[0m \x1b]0;title\x07"}).encode()
    message = extract_message(content)
    assert message.startswith("red")
    assert message.isprintable()


def test_token_is_masked_despite_invisible_characters() -> None:
    token = "ghp_planted0123456789"
    for hidden in ("\u200b", "\x1b[0m", "\u202e"):
        content = json.dumps({"message": f"no {token[:9]}{hidden}{token[9:]}"}).encode()
        assert extract_message(content, Secret(token)) == "no ***"
