"""Authentication with a registry: anonymous, user name and password, or a token from the server that the registry names."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlencode, urlsplit, urlunsplit

from sandyard.engine.images.http_client import HttpClient
from sandyard.kit import bounded_json
from sandyard.kit.errors import ForbiddenError, InvalidInputError, UnsupportedError
from sandyard.kit.secret import Secret

_MAX_BYTES, _MAX_VALUES = 1 << 20, 1000
_MAX_HEADER = 8192
_PARAMETER = re.compile(r'\s*+,?\s*+([A-Za-z_-]+)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^\s,"]+))')


@dataclass(frozen=True, slots=True)
class Login:
    username: str
    password: Secret

    @property
    def header(self) -> str:
        pair = f"{self.username}:{self.password.reveal()}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"


@dataclass(frozen=True, slots=True)
class Challenge:
    """A challenge of a `WWW-Authenticate` header: the scheme in lower case, and its parameters."""

    scheme: str
    parameters: dict[str, str]


def parse_challenges(header: str) -> list[Challenge]:
    """Return all challenges of a header; malformed ones are skipped."""
    challenges: list[Challenge] = []
    rest = header[:_MAX_HEADER]
    while match := re.match(r"\s*+,?\s*+([A-Za-z][A-Za-z0-9-]*+)(?:\s++|$)(?!=)", rest):
        rest = rest[match.end() :]
        parameters: dict[str, str] = {}
        while pair := _PARAMETER.match(rest):
            quoted, bare = pair[2], pair[3]
            parameters[pair[1].lower()] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare
            rest = rest[pair.end() :]
        challenges.append(Challenge(match[1].lower(), parameters))
    return challenges


def _parse_realm(url: str) -> SplitResult | None:
    """Return the address of a token server, None if it is not an address."""
    try:
        realm = urlsplit(url)
    except ValueError:
        return None
    return realm if realm.hostname else None


class RegistryAuthenticator:
    """Provides the `Authorization` header for one repository's requests. `login` is called once, when the registry
    requires one."""

    def __init__(self, client: HttpClient, repository: str, login: Callable[[], Awaitable[Login | None]]) -> None:
        self._client = client
        self._repository = repository
        self._get_login = login
        self._lock = asyncio.Lock()
        self.header: str | None = None

    async def answer_challenge(self, challenge: str, refused: str | None) -> str | None:
        """Return the header to try next after a 401 for the one in `refused`, or None if there is no better one."""
        async with self._lock:
            if self.header != refused:  # another task has already replaced it
                return self.header
            self.header = await self._choose_header(parse_challenges(challenge), refused)
            return self.header

    async def _choose_header(self, challenges: list[Challenge], refused: str | None) -> str | None:
        login = await self._get_login()
        for challenge in challenges:
            if challenge.scheme == "bearer":
                return await self._request_token(challenge, login)
            if challenge.scheme == "basic":
                header = login.header if login else None
                return header if header != refused else None
        names = ", ".join(challenge.scheme for challenge in challenges)[:100] or "nothing"
        raise UnsupportedError(
            f"The registry requires an unsupported login method ({names}). Supported methods are Basic and Bearer."
        )

    async def _request_token(self, challenge: Challenge, login: Login | None) -> str:
        realm = _parse_realm(challenge.parameters.get("realm", ""))
        if realm is None:
            raise InvalidInputError("The registry requires a token but does not name a server that issues tokens.")
        query = {"scope": challenge.parameters.get("scope") or f"repository:{self._repository}:pull"}
        if "service" in challenge.parameters:
            query["service"] = challenge.parameters["service"]
        url = urlunsplit(realm._replace(query="&".join(filter(None, (realm.query, urlencode(query)))), fragment=""))
        response = await self._client.request(url, {"Authorization": login.header} if login else {}, _MAX_BYTES)
        if response.status in (401, 403):
            who = "these credentials" if login else "requests without credentials"
            raise ForbiddenError(f"The token server {realm.hostname} denied {who} for {self._repository}.")
        try:
            document = bounded_json.parse(response.body, largest=_MAX_BYTES, values=_MAX_VALUES)
            token = document.get("token") or document.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if response.status != 200 or not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise InvalidInputError(f"The token server {realm.hostname} returned no token (status {response.status}).")
        return f"Bearer {token}"
