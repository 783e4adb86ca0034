"""Receive GitHub webhooks, which are authenticated by their signature.

A delivery only says that something has changed; the current state is read from the API. Before the signature is verified, a body is only
hashed and searched for repository names: nothing is parsed.

A delivery is recorded together with a mark on its pull requests (`looked_at` is cleared), before anything else happens. A crash afterwards
loses nothing, because `PullRequestPoller` polls what is marked. The only data taken from a delivery itself is a labelled issue; its effects
are written in the same transaction.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import TypeVar

from sqlalchemy import ColumnElement, Row, delete, func, or_, select, update
from sqlalchemy.exc import IntegrityError

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import Credential, Delivery, Project, PullRequest
from sandyard.platform.domain.forge.deliveries import (
    MAX_BYTES,
    LabelledIssue,
    Subject,
    find_repository_names,
    get_slug,
    parse_payload,
    parse_sender,
    parse_subject,
)
from sandyard.platform.domain.forge.model import ForgeKind
from sandyard.platform.domain.forge.service import PullRequests
from sandyard.platform.domain.projects.credentials import CredentialKind, Credentials
from sandyard.platform.domain.repositories.errors import TooMuchError

log = get_logger(__name__)
DELIVERY_RETENTION = timedelta(days=30)
SETTLE_S = 1.0
"""Deliveries arrive in bursts: how long to wait for more about the same pull request before polling the forge."""
LARGE_BYTES, MAX_LARGE_AT_ONCE = 256 << 10, 2
"""Larger bodies are processed in a thread, at most this many at a time."""
MAX_PROJECTS_PER_OWNER = 200
"""Maximum number of projects of one owner whose secrets are tried, oldest first."""
MAX_PROJECTS, MAX_SECRETS, MAX_HASHED_BYTES = 1000, 200, 128 << 20
"""Maximum number of projects and of different secrets that are tried for a delivery, and of bytes that are hashed for them.

For the largest delivery these are 25 secrets; GitHub allows 20 webhooks of an event per repository. All owners have the same share, so
that nobody can displace the projects of others.
"""
Result = TypeVar("Result")
_SIGNATURE_PATTERN = re.compile(r"sha256=[0-9a-f]{64}")
_DELIVERY_PATTERN, _EVENT_PATTERN = re.compile(r"[!-~]{1,100}"), re.compile(r"[a-z_]{1,60}")


class WebhookUnconfiguredError(SandyardError):
    """No project here accepts webhooks of this repository. Set a webhook secret in the project first."""

    code, status = "webhook_unconfigured", 403


class WebhookSignatureError(SandyardError):
    """The signature is invalid: the webhook secrets here and on GitHub differ. Enter the same secret in both places."""

    code, status = "webhook_signature", 401


class WebhookUnsignedError(WebhookSignatureError):
    """The delivery has no SHA-256 signature. Enter the project's webhook secret in the settings of the webhook on GitHub."""


class DeliveryResult(StrEnum):
    """The result of handling a delivery. `known`: this delivery was already received. `ignored`: it is not relevant."""

    TAKEN = "taken"
    KNOWN = "known"
    IGNORED = "ignored"


def make_issue_key(number: int) -> str:
    """Return the key that records that an issue has become a task, even if the task was deleted since."""
    return f"issue:{number}"


def check_headers(headers: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the signature, event and number of a delivery, without its body.

    Raises WebhookUnsignedError if the signature is missing or malformed, and InvalidInputError if the event or the number is.
    """
    signature = _get_header(headers, "X-Hub-Signature-256")
    if not _SIGNATURE_PATTERN.fullmatch(signature):
        raise WebhookUnsignedError
    event, number = _get_header(headers, "X-GitHub-Event"), _get_header(headers, "X-GitHub-Delivery")
    if not (_EVENT_PATTERN.fullmatch(event) and _DELIVERY_PATTERN.fullmatch(number)):
        raise InvalidInputError("A delivery must have the headers X-GitHub-Event and X-GitHub-Delivery.")
    return signature, event, number


def _get_header(headers: Mapping[str, str], name: str) -> str:
    return next((value for key, value in headers.items() if key.lower() == name.lower()), "")


def _is_signature_valid(secret: str, signature: str, body: bytes) -> bool:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(f"sha256={digest}", signature)


def _matches(subject: Subject) -> ColumnElement[bool]:
    return or_(
        PullRequest.number.in_(subject.numbers),
        PullRequest.head_commit.in_(subject.commits),
        PullRequest.head_branch.in_(subject.branches),
    )


IssueTrigger = Callable[[Transaction, Project, LabelledIssue], Awaitable[None]]


class Webhooks:
    """Receives the deliveries of GitHub webhooks.

    `on_push` is awaited in the background for each project whose repository was pushed to.

    `on_issue` is awaited in the transaction that records the delivery, for each project that turns issues with this label into tasks: once
    per issue.
    """

    def __init__(
        self,
        database: Database,
        credentials: Credentials,
        pulls: PullRequests,
        clock: Clock,
        *,
        on_push: Callable[[Project], Awaitable[None]],
        on_issue: IssueTrigger | None = None,
    ) -> None:
        self._database = database
        self._credentials = credentials
        self._pulls = pulls
        self._clock = clock
        self._on_push = on_push
        self._on_issue = on_issue
        self.tasks = TaskSet("webhooks")
        self._settling: set[str] = set()
        self._large = asyncio.Semaphore(MAX_LARGE_AT_ONCE)

    async def close(self) -> None:
        """Stop. Pull requests that were not polled yet stay marked, and are polled after the next start."""
        await self.tasks.cancel()

    async def receive(self, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
        """Receive a delivery. Idempotent: a delivery acts once, even if it arrives again with another number.

        Raises WebhookUnsignedError, WebhookSignatureError, WebhookUnconfiguredError (also for an unknown repository), TooMuchError, and
        InvalidInputError for an invalid delivery.
        """
        if len(body) > MAX_BYTES:
            raise TooMuchError(f"The webhook is too large: the limit is {MAX_BYTES >> 20} MiB.")
        signature, event, number = check_headers(headers)
        content_type = _get_header(headers, "Content-Type")
        verified = await self._list_verified_projects(content_type, signature, body)
        payload = await self._process(body, lambda: parse_payload(content_type, body))
        sender = parse_sender(payload)
        projects = [project for project in verified if sender.belongs_to(project)]
        if not projects:
            raise WebhookUnconfiguredError
        subject = parse_subject(event, payload)
        if subject is not None and subject.issue is not None:
            projects = [project for project in projects if self._on_issue and subject.issue.is_wanted_by(project)]
        if subject is None or not projects:
            return DeliveryResult.IGNORED
        content = await self._process(body, lambda: hashlib.sha256(event.encode() + b"\0" + body).hexdigest())
        keys = (number, f"sha256:{content}", *([] if subject.issue is None else [make_issue_key(subject.issue.number)]))
        recorded = [project for project in projects if await self._record(project, keys, event, subject)]
        if not recorded:
            return DeliveryResult.KNOWN
        if event == "push":
            for project in recorded:
                self.tasks.spawn(self._handle_push(project))
        return DeliveryResult.TAKEN

    async def _list_verified_projects(self, content_type: str, signature: str, body: bytes) -> list[Project]:
        """Return the projects of the named repositories whose secret matches the signature."""
        names = await self._process(body, lambda: find_repository_names(content_type, body))
        if not names:
            raise InvalidInputError("The delivery names no repository.")
        secrets = await self._load_secrets(names)
        if not secrets:
            raise WebhookUnconfiguredError
        tried = list(islice(secrets, MAX_HASHED_BYTES // (len(body) + 1)))
        matching = await self._process(
            body, lambda: next((key for key in tried if _is_signature_valid(key, signature, body)), None)
        )
        if matching is None:
            raise WebhookSignatureError
        query = select(Project).where(Project.id.in_(secrets[matching]), Project.archived_at.is_(None))
        async with self._database.reading() as session:
            return list(await session.scalars(query.order_by(Project.id)))

    async def _process(self, body: bytes, work: Callable[[], Result]) -> Result:
        """Process a body. A large one delays only other large ones."""
        if len(body) <= LARGE_BYTES:
            return work()
        async with self._large:
            return await asyncio.to_thread(work)

    async def _load_secrets(self, names: frozenset[str]) -> dict[str, list[str]]:
        """Return the webhook secrets of these repositories, with the ids of their projects.

        Anyone can cause this, so it is one query and one call of a thread, whatever the number of projects. The first projects of all
        owners come first, then their second ones, and so on.
        """
        matches_name = [func.lower(Project.repository).contains(name, autoescape=True) for name in sorted(names)]
        rank = func.row_number().over(partition_by=Project.owner_id, order_by=Project.id)
        found = (
            select(Project.id, Project.repository, Credential.value, rank.label("rank"))
            .join(Credential, Credential.project_id == Project.id)
            .where(Credential.kind == CredentialKind.WEBHOOK_SECRET, Project.archived_at.is_(None), or_(*matches_name))
            .subquery()
        )
        query = select(found.c.id, found.c.repository, found.c.value).where(found.c.rank <= MAX_PROJECTS_PER_OWNER)
        async with self._database.reading() as session:
            rows = (await session.execute(query.order_by(found.c.rank, found.c.id).limit(MAX_PROJECTS))).all()
        return await asyncio.to_thread(self._open_secrets, names, rows) if rows else {}

    def _open_secrets(self, names: frozenset[str], rows: Sequence[Row[str, str, bytes]]) -> dict[str, list[str]]:
        secrets: dict[str, list[str]] = {}
        for project_id, repository, stored in rows:
            if get_slug(repository) not in names:
                continue
            secret = self._credentials.open(project_id, CredentialKind.WEBHOOK_SECRET, stored).reveal()
            if secret in secrets or len(secrets) < MAX_SECRETS:
                secrets.setdefault(secret, []).append(project_id)
        return secrets

    async def _record(self, project: Project, keys: tuple[str, ...], event: str, subject: Subject) -> bool:
        """Record a delivery. Returns False if it was already received.

        `keys`: GitHub's number, which a redelivery keeps; a hash of the content, which a replay keeps; and the issue, which can be labelled
        twice.
        """
        now = get_time(self._clock)
        try:
            async with self._database.transaction() as tx:
                received = select(Delivery.delivery).where(
                    Delivery.project_id == project.id, Delivery.delivery.in_(keys)
                )
                if await tx.session.scalar(received.limit(1)) is not None:
                    return False
                await tx.session.execute(delete(Delivery).where(Delivery.received_at < now - DELIVERY_RETENTION))
                for key in set(keys):
                    tx.add(Delivery(project_id=project.id, delivery=key, event=event, received_at=now))
                if subject.issue is not None and self._on_issue is not None:
                    await self._on_issue(tx, project, subject.issue)
                affected = (
                    (PullRequest.project_id == project.id) & (PullRequest.forge == ForgeKind.GITHUB) & _matches(subject)
                )
                ids = list(await tx.session.scalars(select(PullRequest.id).where(affected)))
                await tx.session.execute(update(PullRequest).where(PullRequest.id.in_(ids)).values(looked_at=None))
        except IntegrityError:  # the same delivery arrived twice at once
            return False
        log.info("webhook_taken", project=project.id, webhook=event, delivery=keys[0], pull_requests=len(ids))
        for pull_id in ids:
            if pull_id not in self._settling:
                self._settling.add(pull_id)
                self.tasks.spawn(self._refresh_later(pull_id))
        return True

    async def _refresh_later(self, pull_id: str) -> None:
        """Refresh a pull request after `SETTLE_S`, once for all deliveries until then."""
        try:
            await self._clock.sleep(SETTLE_S)
        finally:
            self._settling.discard(pull_id)  # later deliveries schedule another poll
        async with self._database.reading() as session:
            row = await session.get(PullRequest, pull_id)
        if row is not None:
            await self._pulls.refresh(row)

    async def _handle_push(self, project: Project) -> None:
        await self._on_push(project)
