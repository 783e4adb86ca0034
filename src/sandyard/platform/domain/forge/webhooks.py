"""What GitHub tells by itself. Its signature is its login, and all it is believed is that something has happened: how things are
now is asked from the API.

A delivery is written down together with the mark on the pull requests it speaks of (`looked_at` emptied), before anything is done
about it. A crash after that loses nothing: the follower looks at what is marked.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, delete, func, or_, select, update
from sqlalchemy.exc import IntegrityError

from sandyard.kit.clock import Clock
from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Delivery, Project, PullRequest
from sandyard.platform.domain.forge.deliveries import Subject, payload_of, repository_of, subject_of
from sandyard.platform.domain.forge.model import ForgeKind
from sandyard.platform.domain.forge.service import PullRequests
from sandyard.platform.domain.git.errors import TooMuchError
from sandyard.platform.domain.projects.credentials import CredentialKind, Credentials
from sandyard.platform.domain.users.tokens import instant

log = get_logger(__name__)
LARGEST = 5 << 20
KEPT = timedelta(days=30)
SETTLE_S = 1.0
"""Deliveries come in bursts: so long is waited for more about the same pull request before the forge is asked."""
_SIGNATURE = re.compile(r"sha256=[0-9a-f]{64}")
_DELIVERY, _EVENT = re.compile(r"[!-~]{1,100}"), re.compile(r"[a-z_]{1,60}")


class WebhookUnconfiguredError(SandyardError):
    """No project here takes webhooks of this repository. Give the project a webhook secret first."""

    code, status = "webhook_unconfigured", 403


class WebhookSignatureError(SandyardError):
    """The signature is missing or is not right: the secret here and the one on GitHub are not the same."""

    code, status = "webhook_signature", 401


class Taken(StrEnum):
    """`known`: this delivery was taken before. `ignored`: it speaks of nothing that is followed."""

    TAKEN = "taken"
    KNOWN = "known"
    IGNORED = "ignored"


def _about(subject: Subject) -> ColumnElement[bool]:
    return or_(
        PullRequest.number.in_(subject.numbers),
        PullRequest.head_commit.in_(subject.commits),
        PullRequest.head_branch.in_(subject.branches),
    )


class Webhooks:
    """`on_push` is awaited in the background for each project whose repository was pushed to."""

    def __init__(
        self,
        database: Database,
        credentials: Credentials,
        pulls: PullRequests,
        clock: Clock,
        *,
        on_push: Callable[[Project], Awaitable[None]],
    ) -> None:
        self._database = database
        self._credentials = credentials
        self._pulls = pulls
        self._clock = clock
        self._on_push = on_push
        self._tasks = TaskSet("webhooks")
        self._settling: set[str] = set()

    async def close(self) -> None:
        """What was not looked at yet is still marked, and is looked at after the next start."""
        await self._tasks.cancel()

    async def take(self, headers: Mapping[str, str], body: bytes) -> Taken:
        """WebhookSignatureError, WebhookUnconfiguredError (the same for a repository nobody knows), TooMuchError, or InvalidInputError
        for what is no delivery. Idempotent: one delivery acts once."""
        if len(body) > LARGEST:
            raise TooMuchError(f"A delivery has at most {LARGEST >> 20} MiB.")
        named = {name.lower(): value for name, value in headers.items()}
        signature = named.get("x-hub-signature-256", "")
        if not _SIGNATURE.fullmatch(signature):
            raise WebhookSignatureError
        payload = payload_of(named.get("content-type", ""), body)
        projects = await self._verified(payload, signature, body)
        event, number = named.get("x-github-event", ""), named.get("x-github-delivery", "")
        if not (_EVENT.fullmatch(event) and _DELIVERY.fullmatch(number)):
            raise InvalidInputError("A delivery has the headers X-GitHub-Event and X-GitHub-Delivery.")
        subject = subject_of(event, payload)
        if subject is None:
            return Taken.IGNORED
        taken = [project for project in projects if await self._record(project, number, event, subject)]
        if not taken:
            return Taken.KNOWN
        if event == "push":
            for project in taken:
                self._tasks.spawn(self._pushed(project))
        return Taken.TAKEN

    async def _verified(self, payload: dict[str, Any], signature: str, body: bytes) -> list[Project]:
        """The projects of this repository whose own secret has made the signature."""
        configured, verified = False, []
        for project in await self._projects_of(payload):
            secret = await self._credentials.reveal(project.id, CredentialKind.WEBHOOK_SECRET)
            if secret is None:
                continue
            configured = True
            made = hmac.new(secret.reveal().encode(), body, hashlib.sha256).hexdigest()
            if hmac.compare_digest(f"sha256={made}", signature):
                verified.append(project)
        if not configured:
            raise WebhookUnconfiguredError
        if not verified:
            raise WebhookSignatureError
        return verified

    async def _projects_of(self, payload: dict[str, Any]) -> list[Project]:
        repository = repository_of(payload)
        if repository is None:
            return []
        query = select(Project).where(
            Project.archived_at.is_(None), func.lower(Project.repository).contains(repository.slug, autoescape=True)
        )
        async with self._database.reading() as session:
            rows = list(await session.scalars(query.order_by(Project.id)))
        return [row for row in rows if repository.belongs_to(row)]

    async def _record(self, project: Project, number: str, event: str, subject: Subject) -> bool:
        """False: it was taken before."""
        now = instant(self._clock)
        try:
            async with self._database.transaction() as tx:
                if await tx.session.get(Delivery, (project.id, number)) is not None:
                    return False
                await tx.session.execute(delete(Delivery).where(Delivery.received_at < now - KEPT))
                tx.add(Delivery(project_id=project.id, delivery=number, event=event, received_at=now))
                mine = (
                    (PullRequest.project_id == project.id) & (PullRequest.forge == ForgeKind.GITHUB) & _about(subject)
                )
                ids = list(await tx.session.scalars(select(PullRequest.id).where(mine)))
                await tx.session.execute(update(PullRequest).where(PullRequest.id.in_(ids)).values(looked_at=None))
        except IntegrityError:  # the same one came twice at once
            return False
        log.info("webhook_taken", project=project.id, webhook=event, delivery=number, pull_requests=len(ids))
        for pull_id in ids:
            if pull_id not in self._settling:
                self._settling.add(pull_id)
                self._tasks.spawn(self._look(pull_id))
        return True

    async def _look(self, pull_id: str) -> None:
        try:
            await self._clock.sleep(SETTLE_S)
        finally:
            self._settling.discard(pull_id)  # what comes from now on is looked at by another one
        async with self._database.reading() as session:
            row = await session.get(PullRequest, pull_id)
        if row is not None:
            await self._pulls.refresh(row)

    async def _pushed(self, project: Project) -> None:
        await self._on_push(project)
