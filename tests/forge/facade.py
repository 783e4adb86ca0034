"""A GitHub Enterprise Server for tests: real git repositories, `emulate` behind /api/v3, and corrections of emulate.

    with forge() as github:                                          # tests/forge/__init__.py
        site = github.repository("acme/website", files={"README.md": "hi\\n"})     # see repositories.py
        token = github.tokens.make("sandyard-bot")                   # valid for git and for the API; see tokens.py
        github.url, github.api_url, site.url                         # http://127.0.0.1:PORT, …/api/v3, …/acme/website.git
        app = github.app("acme")                                     # .app_id, .installation_id, .private_key
        github.hook("acme/website", url, secret)                     # signed deliveries
        grace = github.colleague("grace")                            # .approve(…), .comment(…), .check(…), .merge(…): colleagues.py
        github.faults.answer(502, times=2, on="api")                 # see faults.py
        github.limit.exhaust(reset_in_s=2)                           # the rate limit is exhausted
        github.requests                                              # requests of git; .calls: of the API

The state is in emulate and in the repositories. After every change of a branch, pushed or made by a colleague, emulate is updated:
its branches, pull requests and webhook deliveries name the real commits.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.forge.api import Api
from tests.forge.calls import Answer, Call, Request
from tests.forge.colleagues import Colleague
from tests.forge.exchange import Exchange
from tests.forge.github import Emulate
from tests.forge.gitserver import GitServer
from tests.forge.limit import RateLimit
from tests.forge.repositories import Files, Repository
from tests.forge.tokens import Token, Tokens

ROOT = "double-root"
"""The user in emulate that the double itself uses."""
KNOWN_COMMITS = 300
"""The number of commits of a push that are sent to emulate. Tests need no more."""


@dataclass(frozen=True)
class App:
    app_id: int
    installation_id: int
    private_key: str
    slug: str


@functools.cache
def _private_key() -> str:
    """Return the key of all apps: generating one takes half a second."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(encoding, serialization.PrivateFormat.TraditionalOpenSSL, no_password).decode()


class RegisteredTokens(Tokens):
    """Tokens that are also registered in emulate."""

    def __init__(self, github: GitHub) -> None:
        super().__init__()
        self._github = github

    def make(
        self,
        login: str,
        *,
        write: bool = True,
        repositories: Collection[str] | None = None,
        expires_in_s: float | None = None,
        text: str | None = None,
        kind: str = "ghp",
    ) -> Token:
        token = super().make(
            login, write=write, repositories=repositories, expires_in_s=expires_in_s, text=text, kind=kind
        )
        self._github.create_person(login)
        self._github.emulate.call_route("tokens", {"token": token.text, "login": login, "scopes": ["repo"]})
        return token

    def add_installation(
        self, text: str, slug: str, *, write: bool, repositories: Collection[str], seconds: float
    ) -> None:
        """Add a token that emulate created for an App."""
        super().make(f"{slug}[bot]", write=write, repositories=repositories, expires_in_s=seconds, text=text)

    def installations(self) -> list[str]:
        """Return the text of every token that was issued to an App."""
        return [text for text, token in self._known.items() if token.login.endswith("[bot]")]


class GitHub(GitServer):
    def __init__(self) -> None:
        super().__init__()
        self.api_url = f"{self.url}/api/v3"
        self.emulate = Emulate(self.url)
        self.limit = RateLimit()
        self.tokens: RegisteredTokens = RegisteredTokens(self)
        self.apps: list[App] = []
        self.installation_token_seconds = 3600.0
        """Lifetime of the App tokens that are issued from now on."""
        self.lock = threading.RLock()
        self._logins: list[str] = []
        self._strangers: set[str] = set()
        self._owners: list[str] = []
        self._heads: dict[str, dict[str, str]] = {}
        self.root_token: Token
        self._api = Api(self)

    @property
    def calls(self) -> list[Call]:
        return self._api.calls

    def __enter__(self) -> GitHub:
        self.emulate.start()
        super().__enter__()
        self.root_token = self.tokens.make(ROOT)
        return self

    def stop(self) -> None:
        super().stop()
        self.emulate.stop()

    def handle(self, exchange: Exchange) -> None:
        if exchange.path.startswith("/api/"):
            self._api.handle(exchange)
        else:
            self.handle_git(exchange)

    def create_person(self, login: str) -> None:
        """Create a user, who is a member of every organization unless they are a stranger. Idempotent."""
        with self.lock:
            if login not in self._logins:
                self._logins.append(login)
                self._seed()

    def repository(
        self, slug: str, *, files: Files | None = None, default_branch: str = "main", anonymous: bool = False
    ) -> Repository:
        made = super().repository(slug, files=files, default_branch=default_branch, anonymous=anonymous)
        with self.lock:
            if made.owner not in self._owners:
                self._owners.append(made.owner)
            self._seed(
                repos=[
                    {
                        "owner": made.owner,
                        "name": made.name,
                        "private": not anonymous,
                        "default_branch": default_branch,
                        "auto_init": False,
                    }
                ]
            )
        made.changed = self.synchronize
        self.synchronize(made)
        return made

    def colleague(self, login: str) -> Colleague:
        return Colleague(self, login)

    def stranger(self, login: str) -> Colleague:
        """Create a user who can only read public repositories."""
        self._strangers.add(login)
        return Colleague(self, login)

    def hook(self, slug: str, url: str, secret: str | None) -> int:
        """Deliver every event of the repository to the URL, signed. Returns the id of the webhook."""
        return self.colleague("hook-keeper").hook(slug, url, secret)

    def app(
        self,
        account: str,
        *,
        repositories: Collection[str] | None = None,
        permissions: dict[str, str] | None = None,
    ) -> App:
        """Create a GitHub App that is installed on the account, for these repositories or, with None, for all."""
        pem = _private_key()
        number = 1000 + len(self.apps)
        made = App(number, number * 10, pem, f"sandyard-{number}")
        granted = permissions or {"contents": "write", "pull_requests": "write", "issues": "write", "checks": "read"}
        installation: dict[str, Any] = {"installation_id": made.installation_id, "account": account}
        if repositories is not None:
            installation |= {"repository_selection": "selected", "repositories": list(repositories)}
        row = {"app_id": made.app_id, "slug": made.slug, "name": made.slug, "private_key": pem, "permissions": granted}
        row |= {"events": ["*"], "installations": [installation]}
        with self.lock:
            if account not in self._owners:
                self._owners.append(account)
            self._seed(apps=[row])
        self.apps.append(made)
        return made

    def _seed(self, **more: object) -> None:
        members = [{"login": login, "role": "admin"} for login in self._logins if login not in self._strangers]
        orgs = [{"login": owner, "members": members} for owner in self._owners]
        self.emulate.call_route("seed", {"users": [{"login": login} for login in self._logins], "orgs": orgs, **more})

    def synchronize(self, repository: Repository, login: str = ROOT) -> None:
        """Update emulate with the state of git. Idempotent."""
        with self.lock:
            branches, before = repository.branches(), self._heads.get(repository.slug, {})
            if branches == before:
                return
            pulls = [self._describe_pull(repository, pull, branches) for pull in self._open(repository.slug)]
            commits = _commits(repository, list(branches.values()), list(before.values()))
            push = {"slug": repository.slug, "branches": branches, "commits": commits, "login": login}
            gone = [pull["number"] for pull in pulls if "head_sha" not in pull]
            moved = [pull for pull in pulls if "head_sha" in pull]
            self.emulate.call_route("branches", {**push, "pulls": moved, "token": self.root_token.text})
            self._heads[repository.slug] = branches
            for number in gone:
                self.root_call("PATCH", f"/repos/{repository.slug}/pulls/{number}", {"state": "closed"})

    def update_pull(self, repository: Repository, facts: dict[str, Any]) -> None:
        """Update one pull request in emulate with the state of git."""
        push = {"slug": repository.slug, "branches": repository.branches(), "commits": [], "login": ROOT}
        self.emulate.call_route("branches", {**push, "pulls": [facts], "token": self.root_token.text})

    def forward(self, request: Request) -> Answer:
        return self._api.forward(request)

    def root_call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call emulate directly, without the facade."""
        headers = {"Authorization": f"token {self.root_token.text}"}
        answer = self.emulate.client.request(method, path, json=body, headers=headers)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def _open(self, slug: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while page := self.root_call("GET", f"/repos/{slug}/pulls?per_page=100&page={len(found) // 100 + 1}"):
            found += page
            if len(page) < 100:
                break
        return found

    def _describe_pull(self, repository: Repository, pull: dict[str, Any], branches: dict[str, str]) -> dict[str, Any]:
        """Return the state of a pull request in git. It has no head if its branch was deleted."""
        head, base = branches.get(pull["head"]["ref"]), branches.get(pull["base"]["ref"])
        if head is None or base is None:
            return {"number": pull["number"]}
        if (head, base) == (pull["head"]["sha"], pull["base"]["sha"]) and pull["changed_files"]:
            return {"number": pull["number"], "head_sha": head}
        return {"number": pull["number"], "base_sha": base, **self.describe_changes(repository, base, head)}

    @staticmethod
    def describe_changes(repository: Repository, base: str, head: str) -> dict[str, Any]:
        lines = [line.split("\t") for line in repository.git("diff", "--numstat", f"{base}...{head}").splitlines()]
        clean = repository.merges_cleanly(base, head)
        return {
            "head_sha": head,
            "commits": int(repository.git("rev-list", "--count", f"{base}..{head}")),
            "additions": sum(int(line[0]) for line in lines if line[0].isdigit()),
            "deletions": sum(int(line[1]) for line in lines if line[1].isdigit()),
            "changed_files": len(lines),
            "mergeable": clean,
            "mergeable_state": "clean" if clean else "dirty",
        }


def _commits(repository: Repository, heads: list[str], known: list[str]) -> list[dict[str, Any]]:
    people = [f"{role}_{what}" for role in ("author", "committer") for what in ("name", "email", "date")]
    fields = ["sha", "tree_sha", *people]
    form = "%x00".join(["%H", "%T", "%an", "%ae", "%aI", "%cn", "%ce", "%cI", "%P", "%B"]) + "%x01"
    if not heads:
        return []
    out = repository.git("log", f"--format={form}", f"-{KNOWN_COMMITS}", *heads, "--not", *known, "--")
    rows = []
    for text in filter(None, (part.strip("\n") for part in out.split("\1"))):
        *values, parents, message = text.split("\0")
        row = dict(zip(fields, values, strict=True))
        rows.append({**row, "parent_shas": parents.split(), "message": message.rstrip("\n")})
    return rows
