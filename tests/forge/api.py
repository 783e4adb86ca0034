"""The GitHub API in front of emulate: faults, tokens and the rate limit first; then emulate's answer, mended.

What is mended, and nothing else: unknown, expired and read-only tokens; who sees which repository; pull requests that GitHub
would refuse, merging by real git and draft pull requests (pulls.py); branches that are made or deleted through the API; commit
statuses, which emulate does not have (statuses.py); times with milliseconds; addresses below /api/v3; ETag and 304.
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
from tests.forge.tokens import presented

if TYPE_CHECKING:
    from tests.forge.facade import GitHub

PASSED_ON = ("Accept", "Authorization", "Content-Type", "X-GitHub-Api-Version")
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
        text = presented(exchange.headers.get("Authorization"))
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
            headers = {name: exchange.headers[name] for name in PASSED_ON if name in exchange.headers}
            request = Request(exchange.method, path + query, _json(data), token, headers)
            answer = self._checked(request, text)
            if faults.take("cut_answer", "api", exchange.method, path):
                raise CutError("it is done, but nobody is told")
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

    def _checked(self, request: Request, presented_text: str | None) -> Answer:
        """From who asks to what they are answered."""
        jwt = presented_text is not None and presented_text.count(".") == 2
        if presented_text is not None and request.token is None and not jwt:
            return refusal(401, "Bad credentials")
        if request.path.startswith("/rate_limit"):
            return Answer(200, self._rate())
        if not self._github.limit.take():
            return refusal(403, "API rate limit exceeded for user ID 1.")
        if request.path.startswith(("/api/graphql", "/graphql")):
            return self._pulls.graphql(request)
        found = re.match(r"/repos/([^/]+/[^/?]+)/?([^?]*)", request.path)
        if found and not jwt:
            request.slug, request.rest = found[1], found[2]
            request.repository = self._github.repositories.get(found[1].lower())
            if refused := self._refused(request):
                return refused
        return self._answer(request)

    def _rate(self) -> dict[str, Any]:
        told = self._github.limit.headers()
        names = {"limit": "Limit", "remaining": "Remaining", "reset": "Reset", "used": "Used"}
        core = {name: int(told[f"X-RateLimit-{header}"]) for name, header in names.items()}
        return {"resources": {"core": core, "graphql": core}, "rate": core}

    def _refused(self, request: Request) -> Answer | None:
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
            for mend in (self._pulls.mend, self._statuses.mend, self._refs):
                if (answer := mend(request)) is not None:
                    return answer
        answer = self.forward(request)
        if request.path.endswith("/access_tokens") and answer.status == 201:
            self._remember(request, answer.body)
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
        """What emulate says."""
        content = None if request.body is None else json.dumps(request.body).encode()
        said = self._github.emulate.client.request(
            request.method, request.path, content=content, headers=_for_emulate(request.headers)
        )
        headers = {}
        if link := said.headers.get("Link"):
            headers["Link"] = link.replace(self._emulates, f"{self._github.api_url}/")
        if request.token and request.token.text.startswith("ghp_"):
            headers["X-OAuth-Scopes"] = "repo" if request.token.write else "public_repo"
        if "json" not in said.headers.get("Content-Type", ""):
            return Answer(
                said.status_code, said.content, {**headers, "Content-Type": said.headers.get("Content-Type", "")}
            )
        body = said.json()
        if said.status_code >= 400 and isinstance(body, dict):
            body |= {"documentation_url": DOCS, "status": str(said.status_code)}
        return Answer(said.status_code, body, headers)

    def _remember(self, request: Request, made: dict[str, Any]) -> None:
        """An installation's token is as good for git as for the API, as long as GitHub says."""
        seconds = self._github.installation_token_seconds
        made["expires_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
        chosen = [each["full_name"] for each in made.get("repositories", [])]
        every = made["repository_selection"] == "all"
        if not every:
            made["repositories"] = [self._whole(slug) for slug in chosen]
        app = next(app for app in self._github.apps if f"/{app.installation_id}/" in request.path)
        self._github.tokens.add_installation(
            made["token"],
            app.slug,
            write=made["permissions"].get("contents") == "write",
            repositories=list(self._github.repositories) if every else chosen,
            seconds=seconds,
        )

    def _whole(self, slug: str) -> dict[str, Any]:
        """A repository with all that GitHub says of its owner; emulate leaves some out where it is an organization."""
        found: dict[str, Any] = self._github.root_call("GET", f"/repos/{slug}")
        somebody = self._github.root_call("GET", f"/users/{self._github.root_token.login}")
        return {**found, "owner": {**somebody, **found["owner"]}}

    def _refs(self, request: Request) -> Answer | None:
        """Branches made, moved and deleted through the API are those of git."""
        repository = request.repository
        assert repository is not None, "asked for repositories only"
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
    """It knows Bearer and token only."""
    text = presented(headers.get("Authorization"))
    return {**headers, "Authorization": f"Bearer {text}"} if text else dict(headers)
