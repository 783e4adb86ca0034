"""Receive GitHub webhooks, which are authenticated by their signature.

A delivery only says that something has changed; the current state is read from the API. Before the signature is verified, a body is only
hashed and searched for repository names: nothing is parsed.

A delivery is recorded together with a mark on its pull requests (`looked_at` is cleared), before anything else happens. A crash afterwards
loses nothing, because the follower polls what is marked. The only data taken from a delivery itself is a labelled issue; its effects are
written in the same transaction.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import TypeVar

from sqlalchemy import ColumnElement, delete, func, or_, select, update
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
KEPT = timedelta(days=30)
SETTLE_S = 1.0
"""Deliveries arrive in bursts: how long to wait for more about the same pull request before polling the forge."""
LARGE, LARGE_AT_ONCE = 256 << 10, 2
"""Larger bodies are processed in a thread, at most this many at a time."""
MOST = 200
"""Maximum number of projects of one repository whose secrets are tried, oldest first."""
Result = TypeVar("Result")
_SIGNATURE = re.compile(r"sha256=[0-9a-f]{64}")
_DELIVERY, _EVENT = re.compile(r"[!-~]{1,100}"), re.compile(r"[a-z_]{1,60}")


class WebhookUnconfiguredError(SandyardError):
    """No project here accepts webhooks of this repository. Set a webhook secret in the project first."""

    code, status = "webhook_unconfigured", 403


class WebhookSignatureError(SandyardError):
    """The signature is missing or invalid: the webhook secrets here and on GitHub differ."""

    code, status = "webhook_signature", 401


class Taken(StrEnum):
    """`known`: this delivery was already received. `ignored`: it is not relevant."""

    TAKEN = "taken"
    KNOWN = "known"
    IGNORED = "ignored"


def issue_key(number: int) -> str:
    """Return the key that records that an issue has become a task, even if the task was deleted since."""
    return f"issue:{number}"


def _signed(secret: str, signature: str, body: bytes) -> bool:
    made = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(f"sha256={made}", signature)


def _about(subject: Subject) -> ColumnElement[bool]:
    return or_(
        PullRequest.number.in_(subject.numbers),
        PullRequest.head_commit.in_(subject.commits),
        PullRequest.head_branch.in_(subject.branches),
    )


IssueTrigger = Callable[[Transaction, Project, LabelledIssue], Awaitable[None]]


class Webhooks:
    """`on_push` is awaited in the background for each project whose repository was pushed to.

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
        self._tasks = TaskSet("webhooks")
        self._settling: set[str] = set()
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def close(self) -> None:
        """Stop. Pull requests that were not polled yet stay marked, and are polled after the next start."""
        await self._tasks.cancel()

    async def take(self, headers: Mapping[str, str], body: bytes) -> Taken:
        """Receive a delivery. Idempotent: a delivery acts once, even if it arrives again under another number.

        Raises WebhookSignatureError, WebhookUnconfiguredError (also for an unknown repository), TooMuchError, and InvalidInputError for an
        invalid delivery.
        """
        if len(body) > MAX_BYTES:
            raise TooMuchError(f"The webhook is too large: the limit is {MAX_BYTES >> 20} MiB.")
        named = {name.lower(): value for name, value in headers.items()}
        signature = named.get("x-hub-signature-256", "")
        if not _SIGNATURE.fullmatch(signature):
            raise WebhookSignatureError
        content_type = named.get("content-type", "")
        verified = await self._verified(content_type, signature, body)
        payload = await self._worked(body, lambda: parse_payload(content_type, body))
        sender = parse_sender(payload)
        projects = [project for project in verified if sender.belongs_to(project)]
        if not projects:
            raise WebhookUnconfiguredError
        event, number = named.get("x-github-event", ""), named.get("x-github-delivery", "")
        if not (_EVENT.fullmatch(event) and _DELIVERY.fullmatch(number)):
            raise InvalidInputError("A delivery must have the headers X-GitHub-Event and X-GitHub-Delivery.")
        subject = parse_subject(event, payload)
        if subject is not None and subject.issue is not None:
            projects = [project for project in projects if self._on_issue and subject.issue.is_wanted_by(project)]
        if subject is None or not projects:
            return Taken.IGNORED
        content = await self._worked(body, lambda: hashlib.sha256(event.encode() + b"\0" + body).hexdigest())
        keys = (number, f"sha256:{content}", *([] if subject.issue is None else [issue_key(subject.issue.number)]))
        taken = [project for project in projects if await self._record(project, keys, event, subject)]
        if not taken:
            return Taken.KNOWN
        if event == "push":
            for project in taken:
                self._tasks.spawn(self._pushed(project))
        return Taken.TAKEN

    async def _verified(self, content_type: str, signature: str, body: bytes) -> list[Project]:
        """Return the projects of the named repositories whose secret matches the signature."""
        names = await self._worked(body, lambda: find_repository_names(content_type, body))
        if not names:
            raise InvalidInputError("The delivery names no repository.")
        secrets: dict[str, list[Project]] = {}
        for project in await self._projects_of(names):
            secret = await self._credentials.reveal(project.id, CredentialKind.WEBHOOK_SECRET)
            if secret is not None:
                secrets.setdefault(secret.reveal(), []).append(project)
        if not secrets:
            raise WebhookUnconfiguredError
        matching = await self._worked(body, lambda: [key for key in secrets if _signed(key, signature, body)])
        if not matching:
            raise WebhookSignatureError
        return [project for key in matching for project in secrets[key]]

    async def _worked(self, body: bytes, work: Callable[[], Result]) -> Result:
        """Process a body. A large one delays only other large ones."""
        if len(body) <= LARGE:
            return work()
        async with self._large:
            return await asyncio.to_thread(work)

    async def _projects_of(self, names: frozenset[str]) -> list[Project]:
        """Return the projects that have a webhook secret."""
        named = [func.lower(Project.repository).contains(name, autoescape=True) for name in sorted(names)]
        having = select(Credential.project_id).where(Credential.kind == CredentialKind.WEBHOOK_SECRET)
        query = select(Project).where(Project.archived_at.is_(None), Project.id.in_(having), or_(*named))
        async with self._database.reading() as session:
            rows = list(await session.scalars(query.order_by(Project.id)))
        return list(islice((row for row in rows if get_slug(row) in names), MOST))

    async def _record(self, project: Project, keys: tuple[str, ...], event: str, subject: Subject) -> bool:
        """Record a delivery. Returns False if it was already received.

        `keys`: GitHub's number, which a redelivery keeps; a hash of the content, which a replay keeps; and the issue, which can be labelled
        twice.
        """
        now = get_time(self._clock)
        try:
            async with self._database.transaction() as tx:
                before = select(Delivery.delivery).where(Delivery.project_id == project.id, Delivery.delivery.in_(keys))
                if await tx.session.scalar(before.limit(1)) is not None:
                    return False
                await tx.session.execute(delete(Delivery).where(Delivery.received_at < now - KEPT))
                for key in set(keys):
                    tx.add(Delivery(project_id=project.id, delivery=key, event=event, received_at=now))
                if subject.issue is not None and self._on_issue is not None:
                    await self._on_issue(tx, project, subject.issue)
                mine = (
                    (PullRequest.project_id == project.id) & (PullRequest.forge == ForgeKind.GITHUB) & _about(subject)
                )
                ids = list(await tx.session.scalars(select(PullRequest.id).where(mine)))
                await tx.session.execute(update(PullRequest).where(PullRequest.id.in_(ids)).values(looked_at=None))
        except IntegrityError:  # the same delivery arrived twice at once
            return False
        log.info("webhook_taken", project=project.id, webhook=event, delivery=keys[0], pull_requests=len(ids))
        for pull_id in ids:
            if pull_id not in self._settling:
                self._settling.add(pull_id)
                self._tasks.spawn(self._look(pull_id))
        return True

    async def _look(self, pull_id: str) -> None:
        try:
            await self._clock.sleep(SETTLE_S)
        finally:
            self._settling.discard(pull_id)  # later deliveries schedule another poll
        async with self._database.reading() as session:
            row = await session.get(PullRequest, pull_id)
        if row is not None:
            await self._pulls.refresh(row)

    async def _pushed(self, project: Project) -> None:
        await self._on_push(project)
