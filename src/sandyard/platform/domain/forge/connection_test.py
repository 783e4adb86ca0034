"""The connection test of a project. Checks, in order, everything that a pull request needs, beginning with the repository's URL."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sandyard.kit.errors import SandyardError
from sandyard.platform.db.models import Project
from sandyard.platform.domain.forge.access import CredentialStore, ForgeAccess
from sandyard.platform.domain.forge.addresses import explain_missing_pull_requests
from sandyard.platform.domain.forge.errors import (
    ConnectionTestFailedError,
    ForgeForbiddenError,
    ForgeNotFoundError,
    ForgeRateLimitedError,
    ForgeUnauthorizedError,
    ForgeUnsupportedError,
)
from sandyard.platform.domain.forge.github import GitHubRepository
from sandyard.platform.domain.forge.model import Budget, Finding, ForgeKind, Permissions
from sandyard.platform.domain.projects.credentials import CredentialDraft, CredentialKind
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.repositories.error_translation import clean_line
from sandyard.platform.domain.repositories.errors import RemoteRefusedError, RemoteUnreachableError
from sandyard.platform.domain.repositories.mirror import Mirror, Mirrors
from sandyard.platform.domain.repositories.model import Credential
from sandyard.platform.domain.repositories.remote import Remote
from sandyard.platform.domain.users.model import Principal

_TOKEN, _REPOSITORY, _API_URL = "token", "repository", "apiUrl"
_CANNOT_PUSH_BY_HTTP = "The token can read the repository but not push to it. Enter a token with write access."
_CANNOT_PUSH_BY_SSH = "The SSH key can read the repository but not push to it. Give the key write access on the remote."
_DRAFT = "draft"
"""The id of a mirror that is never created: a draft is tested against its remote only."""


class ConnectionTests:
    """Tests stored projects and drafts. Changes nothing on the remote."""

    def __init__(self, access: ForgeAccess, credentials: CredentialStore, projects: Projects, mirrors: Mirrors) -> None:
        self._access = access
        self._credentials = credentials
        self._projects = projects
        self._mirrors = mirrors

    async def check(self, caller: Principal, project_id: str) -> list[Finding]:
        """Test a project: return each requirement, whether it is met, and what to do if not."""
        project = await self._projects.get(caller, project_id)
        kinds = {info.kind for info in await self._credentials.list(caller, project_id)}
        findings = await ConnectionTest(self._access, self._mirrors.get(project_id), project, kinds).run()
        if project.repository is not None:
            await self._projects.record_connection_error(project_id, describe_failure(findings))
        return findings

    async def check_draft(self, project: Project, drafts: Sequence[CredentialDraft]) -> None:
        """Test a project and credentials that need not be stored yet. Raises ConnectionTestFailedError."""
        kinds = {draft.kind for draft in drafts}
        for kind in set(CredentialKind) - kinds:
            if await self._credentials.reveal(project.id, kind) is not None:
                kinds.add(kind)
        access = self._access.with_drafts(drafts)
        try:
            findings = await ConnectionTest(access, self._mirrors.get(_DRAFT), project, kinds).run()
        finally:
            await access.close()
        if describe_failure(findings) is not None:
            raise ConnectionTestFailedError(findings)

    async def check_api(self, project: Project) -> None:
        """Test the forge's API with the project, which may be an unsaved draft. Does nothing for a plain remote.

        Raises ConnectionTestFailedError.
        """
        if project.repository is None or self._access.get_forge(project) is not ForgeKind.GITHUB:
            return
        test = ConnectionTest(self._access, self._mirrors.get(_DRAFT), project, ())
        findings = [finding for finding in await test.run_api() if not finding.ok]
        if findings:
            raise ConnectionTestFailedError(findings)


def describe_failure(findings: Sequence[Finding]) -> str | None:
    """Return why the project cannot be used, in sentences; None if it can. A low rate limit at the forge is not a failure."""
    return " ".join(finding.detail for finding in findings if not finding.ok and finding.what != "budget") or None


class ConnectionTest:
    """Queries the remote and the forge and changes nothing. Never waits for rate limits, but reports them."""

    def __init__(
        self, access: ForgeAccess, mirror: Mirror, project: Project, kinds: Collection[CredentialKind]
    ) -> None:
        self._access = access
        self._mirror = mirror
        self._project = project
        self._kinds = kinds
        self._findings: list[Finding] = []

    async def run(self) -> list[Finding]:
        """Return the findings in the order in which to fix them. Checks that depend on a failed one are left out."""
        try:
            remote = await self._access.get_remote(self._project)
            forge = self._access.get_forge(self._project)
        except SandyardError as error:
            return [Finding("repository", False, error.message, _REPOSITORY)]
        credential = await self._check_credential(remote)
        default = await self._check_forge() if forge is ForgeKind.GITHUB else None
        if forge is ForgeKind.PLAIN:
            note = explain_missing_pull_requests(self._project)
            self._add("forge", True, note or "A plain Git remote: branches are pushed without pull requests.")
        is_readable = await self._check_repository(remote, credential, default)
        if forge is ForgeKind.PLAIN and is_readable and credential is not None:
            await self._check_plain_push(remote, credential)
        return self._findings

    async def run_api(self) -> list[Finding]:
        """Test only whether the forge's API responds for the repository and lets the credential push."""
        try:
            github, permissions = await self._get_permissions()
        except SandyardError as error:
            self._add_api_error(error)
        else:
            self._check_push_permission(github, permissions)
        return self._findings

    async def _check_credential(self, remote: Remote) -> Credential | None:
        if remote.kind == "local":
            self._add("credential", True, "A repository on this machine needs no credential.")
            return None
        try:
            credential = await self._access.get_credential(self._project)
        except SandyardError as error:
            self._add("credential", False, error.message, _TOKEN)
            return None
        if credential is not None:
            self._add("credential", True, f"Uses {self._get_credential_name(credential)}.")
        elif remote.kind == "ssh":
            self._add(
                "credential",
                False,
                "The remote uses SSH, but there is no SSH key. Add one.",
                _REPOSITORY,
            )
        else:
            self._add(
                "credential",
                False,
                "There is no token and no GitHub App: a public repository can be read, but nothing can be pushed. Enter a token.",
                _TOKEN,
            )
        return credential

    def _get_credential_name(self, credential: Credential) -> str:
        if credential.ssh_key is not None:
            return "an SSH key"
        return "a token" if CredentialKind.TOKEN in self._kinds else "a GitHub App"

    async def _check_forge(self) -> str | None:
        """Check the forge. Returns the default branch, if GitHub reports it."""
        try:
            github, permissions = await self._get_permissions()
        except SandyardError as error:
            self._add_api_error(error)
            return None
        expires = await self._access.get_token_expiry(self._project)
        self._add("api", True, "GitHub responds." + (f" The token expires at {expires[:40]}." if expires else ""))
        self._check_push_permission(github, permissions)
        budget = await github.get_budget()
        if budget is not None:
            self._add("budget", not budget.low, _describe_budget(budget))
        if CredentialKind.WEBHOOK_SECRET in self._kinds:
            self._add("webhook", True, "A webhook secret is set.")
        else:
            self._add("webhook", True, "No webhook secret is set: pull requests are polled instead.")
        return permissions.default_branch

    async def _get_permissions(self) -> tuple[GitHubRepository, Permissions]:
        github = await self._access.get_github_repository(self._project, max_wait_s=0)
        return github, await github.get_permissions()

    def _check_push_permission(self, github: GitHubRepository, permissions: Permissions) -> None:
        can_push, detail = _check_push(github, permissions)
        self._add("push", can_push, detail, None if can_push or permissions.archived else _TOKEN)

    def _add_api_error(self, error: SandyardError) -> None:
        """Add a finding about an API error. If an API URL was entered, the finding names it, because it may be wrong."""
        api_url, field = ProjectSettings.from_project(self._project).forge.api_url, _get_field(error)
        if api_url is None:
            self._add("api", False, error.message, field)
            return
        message = f"{api_url} did not respond like GitHub's API: {error.message}"
        if isinstance(error, ForgeUnsupportedError):  # no request was sent
            message = error.message
        elif isinstance(error, (ForgeUnauthorizedError, ForgeForbiddenError, ForgeRateLimitedError)):
            message = f"{error.message} The API URL is {api_url}."
        elif isinstance(error, ForgeNotFoundError):
            message = (
                f"{api_url} has no such repository. Check the API URL, the repository's URL, and the token's access."
            )
        self._add("api", False, message, _API_URL if field != _TOKEN else field)

    async def _check_repository(self, remote: Remote, credential: Credential | None, default: str | None) -> bool:
        """Check the repository and the base branch. Returns whether the repository can be read."""
        try:
            heads = await self._mirror.list_remote_branches(remote, credential)
        except SandyardError as error:
            # the SSH key or the path was refused, which is entered with the repository
            refused = isinstance(error, RemoteRefusedError) and remote.kind != "http"
            self._add("repository", False, error.message, _REPOSITORY if refused else _get_field(error))
            return False
        self._add(
            "repository", True, f"{remote.url} responds and has {len(heads)} branch{'' if len(heads) == 1 else 'es'}."
        )
        base = self._project.base_branch or default
        if base is None and heads:
            self._add("base_branch", True, "None is set: the repository's default branch is used.")
        elif base in heads:
            self._add("base_branch", True, f"{base} exists.")
        else:
            missing = f"There is no branch {base}." if base else "The repository has no branches. Push a first commit."
            available = f" Available: {', '.join(sorted(heads)[:10])}." if heads else ""
            self._add("base_branch", False, missing + available, "baseBranch")
        return True

    async def _check_plain_push(self, remote: Remote, credential: Credential) -> None:
        """Check that the credential, which can read, can also push."""
        is_ssh = remote.kind == "ssh"
        try:
            await self._mirror.check_push_access(remote, credential)
        except RemoteUnreachableError as error:
            if not is_ssh:
                self._add("push", False, error.message)
                return
            # a server that refuses a read-only key closes the connection
            self._add("push", False, f"{_CANNOT_PUSH_BY_SSH} {error.message}", _REPOSITORY)
        except RemoteRefusedError:
            self._add(
                "push",
                False,
                _CANNOT_PUSH_BY_SSH if is_ssh else _CANNOT_PUSH_BY_HTTP,
                _REPOSITORY if is_ssh else _TOKEN,
            )
        except SandyardError as error:
            self._add("push", False, error.message, _get_field(error))
        else:
            self._add("push", True, f"The {'SSH key' if is_ssh else 'token'} can push.")

    def _add(self, what: str, ok: bool, detail: str, field: str | None = None) -> None:
        # may repeat what the forge sent, such as the name of a branch
        self._findings.append(Finding(what, ok, clean_line(detail), field))


def _get_field(error: SandyardError) -> str | None:
    """Return the field to correct; None if the forge or the connection to it failed."""
    if isinstance(error, (ForgeUnauthorizedError, ForgeForbiddenError, RemoteRefusedError)):
        return _TOKEN
    return None if isinstance(error, ForgeRateLimitedError) or error.status >= 500 else _REPOSITORY


def _check_push(github: GitHubRepository, permissions: Permissions) -> tuple[bool, str]:
    try:
        github.require_write(permissions)
    except SandyardError as error:
        return False, error.message
    return True, f"The credential can push to {github.slug} and open pull requests."


def _describe_budget(budget: Budget) -> str:
    until = f"until {budget.resets_at:%H:%M:%S} UTC"
    if budget.low:
        return f"Only {budget.remaining} of {budget.limit} requests are left {until}. After that the platform waits."
    return f"{budget.remaining} of {budget.limit} requests are left {until}."
