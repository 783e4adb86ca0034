"""The connection test of a project: everything between its repository's address and a pull request, one after the other."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from sandyard.kit.errors import SandyardError
from sandyard.platform.db.models import Project
from sandyard.platform.domain.forge.github import GitHubRepository
from sandyard.platform.domain.forge.model import Budget, Finding, ForgeKind, Permissions
from sandyard.platform.domain.git.mirror import Mirror
from sandyard.platform.domain.git.model import Credential
from sandyard.platform.domain.git.remote import Remote
from sandyard.platform.domain.projects.credentials import CredentialKind

if TYPE_CHECKING:
    from sandyard.platform.domain.forge.access import Access


class Checkup:
    """Asks the remote and the forge and changes nothing on either. Never waits for the forge's limits: it says what they are."""

    def __init__(self, access: Access, mirror: Mirror, project: Project, kinds: Collection[CredentialKind]) -> None:
        self._access = access
        self._mirror = mirror
        self._project = project
        self._kinds = kinds
        self._findings: list[Finding] = []

    async def run(self) -> list[Finding]:
        """In the order in which they should be mended. What cannot be looked at before another is mended is left out."""
        try:
            remote = await self._access.remote(self._project)
            forge = self._access.forge(self._project)
        except SandyardError as error:
            return [Finding("repository", False, error.message)]
        credential = await self._credential(remote)
        default = await self._forge() if forge is ForgeKind.GITHUB else None
        if forge is ForgeKind.PLAIN:
            self._say(
                "forge", True, "This is a plain git remote: work ends at the pushed branch, which can be compared."
            )
        await self._repository(remote, credential, default)
        return self._findings

    async def _credential(self, remote: Remote) -> Credential | None:
        if remote.kind == "local":
            self._say("credential", True, "A repository on this machine needs none.")
            return None
        try:
            credential = await self._access.credential(self._project)
        except SandyardError as error:
            self._say("credential", False, error.message)
            return None
        if credential is not None:
            self._say("credential", True, f"{self._named(credential)} is stored.")
        elif remote.kind == "ssh":
            self._say(
                "credential", False, "The remote is reached over SSH, and the project has no SSH key. Give it one."
            )
        else:
            self._say(
                "credential",
                False,
                "The project has no token and no App: a public repository can be read, and nothing can be pushed. Give it one.",
            )
        return credential

    def _named(self, credential: Credential) -> str:
        if credential.ssh_key is not None:
            return "An SSH key"
        return "A token" if CredentialKind.TOKEN in self._kinds else "A GitHub App"

    async def _forge(self) -> str | None:
        """The default branch, if GitHub says it."""
        try:
            github = await self._access.github(self._project, max_wait_s=0)
            allowed = await github.permissions()
        except SandyardError as error:
            self._say("api", False, error.message)
            return None
        expires = await self._access.token_expires(self._project)
        self._say("api", True, "GitHub answers." + (f" The token ends at {expires[:40]}." if expires else ""))
        self._say("push", *_may_push(github, allowed))
        budget = await github.budget()
        if budget is not None:
            self._say("budget", not budget.low, _left(budget))
        if CredentialKind.WEBHOOK_SECRET in self._kinds:
            self._say("webhook", True, "A secret for webhooks is set.")
        else:
            self._say(
                "webhook", True, "No secret for webhooks is set: pull requests are asked after now and then instead."
            )
        return allowed.default_branch

    async def _repository(self, remote: Remote, credential: Credential | None, default: str | None) -> None:
        try:
            heads = await self._mirror.look(remote, credential)
        except SandyardError as error:
            self._say("repository", False, error.message)
            return
        self._say(
            "repository", True, f"{remote.url} answers, and has {len(heads)} branch{'' if len(heads) == 1 else 'es'}."
        )
        base = self._project.base_branch or default
        if base is None and heads:
            self._say("base_branch", True, "None is set: the repository's own default branch is used.")
        elif base in heads:
            self._say("base_branch", True, f"{base} is there.")
        else:
            missing = f"There is no branch {base}." if base else "There is no branch at all: push a first commit."
            some = f" There is: {', '.join(sorted(heads)[:10])}." if heads else ""
            self._say("base_branch", False, missing + some)

    def _say(self, what: str, ok: bool, detail: str) -> None:
        self._findings.append(Finding(what, ok, detail))


def _may_push(github: GitHubRepository, allowed: Permissions) -> tuple[bool, str]:
    try:
        github.require_write(allowed)
    except SandyardError as error:
        return False, error.message
    return True, f"The credential may push to {github.slug} and open pull requests there."


def _left(budget: Budget) -> str:
    until = f"until {budget.resets_at:%H:%M:%S} UTC"
    if budget.low:
        return f"Only {budget.remaining} of {budget.limit} requests are left {until}. After that the platform waits."
    return f"{budget.remaining} of {budget.limit} requests are left {until}."
