"""The GitHub API in front of emulate: first faults, tokens and the rate limit; then the answer of emulate, corrected.

These corrections are made, and no others: unknown, expired and read-only tokens; the visibility of repositories; pull requests that
GitHub would refuse, merging by real git and draft pull requests (pulls.py); branches created or deleted through the API; commit
statuses, which emulate does not support (statuses.py); times with milliseconds; URLs below /api/v3; ETag and 304.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.forge.calls import DOCS, Answer, Call, Request, refusal
from tests.forge.exchange import CutError, Exchange
from tests.forge.pulls import Pulls
from tests.forge.statuses import Statuses
from tests.forge.tokens import parse_token

if TYPE_CHECKING:
    from tests.forge.facade import GitHub

FORWARDED_HEADERS = ("Accept", "Authorization", "Content-Type", "X-GitHub-Api-Version")
MILLISECONDS = re.compile(rb'(?<="\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d{3}(?=Z")')
OWN_ADDRESSES = rb"(?=(?:repos|repositories|users|orgs|user|app|search|teams)\b)"


class Api:
    def __init__(self, github: GitHub) -> None:
        self._github = github
        self._pulls = Pulls(github)
        self._statuses = Statuses()
        self.calls: list[Call] = []
        own = re.escape(github.url.encode())
        self._own = re.compile(own + rb"/" + OWN_ADDRESSES)
        self._emulates = f"http://127.0.0.1:{github.emulate.port}/"

    def handle(self, exchange: Exchange) -> None:
        data = exchange.body()
        path = exchange.path.removeprefix("/api/v3") if exchange.path.startswith("/api/v3") else exchange.path
        query = f"?{exchange.query}" if exchange.query else ""
        text = parse_token(exchange.headers.get("Authorization"))
        token = self._github.tokens.find(text) if text else None
        faults = self._github.faults
        try:
            if slow := faults.take("slow", "api", exchange.method, path):
                time.sleep(slow.seconds)
            if (held := faults.take("hold", "api", exchange.method, path)) and held.gate:
                held.gate.hold()
                if held.gate.is_cut:
                    raise CutError("cut by a test at its gate")
            if faults.take("cut", "api", exchange.method, path):
                raise CutError("cut by a test")
            if wrong := faults.take("answer", "api", exchange.method, path):
                headers = {"Content-Type": "application/json", **self._github.limit.headers(), **wrong.headers}
                exchange.answer(wrong.status, headers, wrong.body)
                return
            headers = {name: exchange.headers[name] for name in FORWARDED_HEADERS if name in exchange.headers}
            request = Request(exchange.method, path + query, _json(data), token, headers)
            answer = self._check_and_answer(request, text)
            if faults.take("cut_answer", "api", exchange.method, path):
                raise CutError("the call is done, but its answer is lost")
            self._send(exchange, answer)
        finally:
            login = token.login if token else None
            self.calls.append(Call(exchange.method, path, exchange.answered, login))

    def _send(self, exchange: Exchange, answer: Answer) -> None:
        data = self._own.sub(self._github.api_url.encode() + b"/", MILLISECONDS.sub(b"", answer.data))
        headers = {"Content-Type": "application/json; charset=utf-8", **answer.headers}
        if exchange.method == "GET" and answer.status == 200:
            headers["ETag"] = tag = f'W/"{hashlib.sha256(data).hexdigest()}"'
            if exchange.headers.get("If-None-Match") == tag:
                self._github.limit.give_back()
                exchange.answer(304, {**self._github.limit.headers(), "ETag": tag})
                return
        exchange.answer(answer.status, {**self._github.limit.headers(), **headers}, data)

    def _check_and_answer(self, request: Request, presented_text: str | None) -> Answer:
        """Check the token, the rate limit and the access, and answer the request."""
        jwt = presented_text is not None and presented_text.count(".") == 2
        if presented_text is not None and request.token is None and not jwt:
            return refusal(401, "Bad credentials")
        if request.path.startswith("/rate_limit"):
            return Answer(200, self._describe_limit())
        if not self._github.limit.take():
            return refusal(403, "API rate limit exceeded for user ID 1.")
        if request.path.startswith(("/api/graphql", "/graphql")):
            return self._pulls.graphql(request)
        found = re.match(r"/repos/([^/]+/[^/?]+)/?([^?]*)", request.path)
        if found and not jwt:
            request.slug, request.rest = found[1], found[2]
            request.repository = self._github.repositories.get(found[1].lower())
            if refused := self._find_refusal(request):
                return refused
        return self._answer(request)

    def _describe_limit(self) -> dict[str, Any]:
        headers = self._github.limit.headers()
        names = {"limit": "Limit", "remaining": "Remaining", "reset": "Reset", "used": "Used"}
        core = {name: int(headers[f"X-RateLimit-{header}"]) for name, header in names.items()}
        return {"resources": {"core": core, "graphql": core}, "rate": core}

    def _find_refusal(self, request: Request) -> Answer | None:
        token, repository = request.token, request.repository
        if token is None and (request.method != "GET"):
            return refusal(401, "Requires authentication")
        hidden = repository is None or (repository.private and (token is None or not token.reaches(repository.slug)))
        if hidden:
            return refusal(404, "Not Found")
        if token is not None and request.method != "GET" and not token.write:
            return refusal(403, "Resource not accessible by personal access token")
        return None

    def _answer(self, request: Request) -> Answer:
        if request.repository is not None:
            for correct in (self._pulls.correct, self._statuses.correct, self._refs):
                if (answer := correct(request)) is not None:
                    return answer
        answer = self.forward(request)
        if request.path.endswith("/access_tokens") and answer.status == 201:
            self._register_installation_token(request, answer.body)
        if request.repository is not None and request.token and not request.rest and answer.status == 200:
            write = request.token.write
            answer.body["permissions"] |= {
                "push": write,
                "triage": write,
                "maintain": False,
                "admin": False,
                "pull": True,
            }
        return answer

    def forward(self, request: Request) -> Answer:
        """Return the answer of emulate."""
        content = None if request.body is None else json.dumps(request.body).encode()
        response = self._github.emulate.client.request(
            request.method, request.path, content=content, headers=_for_emulate(request.headers)
        )
        headers = {}
        if link := response.headers.get("Link"):
            headers["Link"] = link.replace(self._emulates, f"{self._github.api_url}/")
        if request.token and request.token.text.startswith("ghp_"):
            headers["X-OAuth-Scopes"] = "repo" if request.token.write else "public_repo"
        if "json" not in response.headers.get("Content-Type", ""):
            return Answer(
                response.status_code,
                response.content,
                {**headers, "Content-Type": response.headers.get("Content-Type", "")},
            )
        body = response.json()
        if response.status_code >= 400 and isinstance(body, dict):
            body |= {"documentation_url": DOCS, "status": str(response.status_code)}
        return Answer(response.status_code, body, headers)

    def _register_installation_token(self, request: Request, made: dict[str, Any]) -> None:
        """Register a new installation token: it is valid for git and for the API until it expires."""
        seconds = self._github.installation_token_seconds
        made["expires_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
        chosen = [each["full_name"] for each in made.get("repositories", [])]
        all_repositories = made["repository_selection"] == "all"
        if not all_repositories:
            made["repositories"] = [self._complete_repository(slug) for slug in chosen]
        app = next(app for app in self._github.apps if f"/{app.installation_id}/" in request.path)
        self._github.tokens.add_installation(
            made["token"],
            app.slug,
            write=made["permissions"].get("contents") == "write",
            repositories=list(self._github.repositories) if all_repositories else chosen,
            seconds=seconds,
        )

    def _complete_repository(self, slug: str) -> dict[str, Any]:
        """Return the repository with all fields of its owner. Emulate omits some of them for organizations."""
        found: dict[str, Any] = self._github.root_call("GET", f"/repos/{slug}")
        user = self._github.root_call("GET", f"/users/{self._github.root_token.login}")
        return {**found, "owner": {**user, **found["owner"]}}

    def _refs(self, request: Request) -> Answer | None:
        """Create, move or delete branches in git as requested through the API."""
        repository = request.repository
        assert repository is not None, "called for repositories only"
        if request.method == "DELETE" and request.rest.startswith("git/refs/heads/"):
            branch = request.rest.removeprefix("git/refs/heads/")
            if repository.head(branch) is None:
                return refusal(422, "Reference does not exist")
            repository.delete_branch(branch)
            return Answer(204)
        if request.method == "POST" and request.rest == "git/refs":
            reference, commit = str(request.body.get("ref")), str(request.body.get("sha"))
            if repository.resolve(commit) != commit:
                return refusal(422, "Object does not exist")
            if repository.head(reference.removeprefix("refs/heads/")):
                return refusal(422, "Reference already exists")
            repository.set_branch(reference.removeprefix("refs/heads/"), commit)
            return Answer(201, {"ref": reference, "object": {"type": "commit", "sha": commit}})
        return None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return None


def _for_emulate(headers: Mapping[str, str]) -> dict[str, str]:
    """Emulate supports only the schemes Bearer and token."""
    text = parse_token(headers.get("Authorization"))
    return {**headers, "Authorization": f"Bearer {text}"} if text else dict(headers)
