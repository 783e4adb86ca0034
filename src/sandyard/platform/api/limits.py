"""Rate limits: creations and executions per user, sign-in attempts and webhooks per address, with a lower limit for rejected webhooks.

A bucket holds one minute's worth and is refilled evenly. Buckets live in this process, so each replica counts separately.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import Depends
from starlette.requests import HTTPConnection

from sandyard.kit.clock import Clock
from sandyard.kit.connections import get_address_group
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.problems import TooManyRequestsError
from sandyard.platform.api.request_slots import release_request_slot
from sandyard.platform.settings import PlatformSettings

Kind = Literal["create", "execute", "login", "address", "webhook", "rejected_webhook"]
_DESCRIPTIONS = {
    "create": "create {n} objects",
    "execute": "run {n} commands or send {n} messages",
    "login": "try to sign in {n} times",
}
_DESCRIPTIONS |= {"address": _DESCRIPTIONS["login"], "webhook": "send {n} webhooks"}
_DESCRIPTIONS["rejected_webhook"] = "send {n} webhooks with an invalid signature"
MAX_BUCKETS = 10_000


@dataclass(slots=True)
class _Bucket:
    left: float
    updated_at: float


class RateLimiter:
    """Counts requests in buckets, one per kind and user, name or address."""

    def __init__(self, settings: PlatformSettings, clock: Clock) -> None:
        self._per_minute: Mapping[str, int] = {
            "create": settings.creates_per_minute,
            "execute": settings.executes_per_minute,
            "login": settings.logins_per_minute,
            "address": settings.logins_per_minute * 10,
            "webhook": settings.executes_per_minute,
            "rejected_webhook": max(1, settings.executes_per_minute // 10),
        }
        self._clock = clock
        self.buckets: dict[tuple[str, str], _Bucket] = {}

    def take(self, kind: Kind, key: str) -> None:
        """Take one from the bucket. Raises TooManyRequestsError with the time to wait."""
        self.check(kind, key)
        self.charge(kind, key)

    def check(self, kind: Kind, key: str) -> None:
        """Take nothing from the bucket. Raises TooManyRequestsError with the time to wait if it is empty."""
        bucket, size = self._get_bucket(kind, key), self._per_minute[kind]
        if bucket.left < 1:
            wait = (1 - bucket.left) * 60 / size
            description = _DESCRIPTIONS[kind].format(n=size)
            raise TooManyRequestsError(
                f"Rate limit exceeded: you may {description} per minute. Try again in {math.ceil(wait)} s.", wait
            )

    def charge(self, kind: Kind, key: str) -> None:
        """Take one from the bucket, even if it is empty: the time to wait is then longer."""
        self._get_bucket(kind, key).left -= 1

    def _get_bucket(self, kind: Kind, key: str) -> _Bucket:
        size, now = self._per_minute[kind], self._clock.now()
        bucket = self.buckets.get((kind, key))
        if bucket is None:
            if len(self.buckets) >= MAX_BUCKETS:
                self._drop_full(now)
            bucket = self.buckets[kind, key] = _Bucket(size, now)
        bucket.left = self._get_refilled(bucket, size, now)
        bucket.updated_at = now
        return bucket

    @staticmethod
    def _get_refilled(bucket: _Bucket, size: int, now: float) -> float:
        return min(size, bucket.left + max(0.0, now - bucket.updated_at) * size / 60)

    def _drop_full(self, now: float) -> None:
        """Drop full buckets, which hold no information. If there are still too many, drop the oldest half."""
        for key, bucket in list(self.buckets.items()):
            if self._get_refilled(bucket, self._per_minute[key[0]], now) >= self._per_minute[key[0]]:
                del self.buckets[key]
        if len(self.buckets) >= MAX_BUCKETS:
            by_age = sorted(self.buckets, key=lambda key: self.buckets[key].updated_at)
            for key in by_age[: MAX_BUCKETS // 2]:
                del self.buckets[key]


def limit_rate(kind: Literal["create", "execute"]) -> Any:
    """Return a dependency that counts against the caller's limit: `dependencies=[limit_rate("create")]`."""

    async def check(connection: HTTPConnection, principal: Caller) -> None:
        limits: RateLimiter = connection.app.state.limits
        limits.take(kind, principal.user_id)
        release_request_slot(connection)  # it may wait for a sandbox, and the rate limits such requests already

    return Depends(check)


def limit_login_rate() -> Any:
    """Return a dependency that counts per address, with a high limit because a proxy may be one address for all users.

    `count_login` also counts per name.
    """

    async def check(connection: HTTPConnection) -> None:
        limits: RateLimiter = connection.app.state.limits
        limits.take("address", get_address(connection))

    return Depends(check)


def limit_webhook_rate() -> Any:
    """Return a dependency that counts per address, because the sender of a webhook is unknown until its signature is checked.

    Also refuses an address that has sent too many invalid signatures; see `count_rejected_webhook`.
    """

    async def check(connection: HTTPConnection) -> None:
        limits: RateLimiter = connection.app.state.limits
        limits.take("webhook", get_address(connection))
        limits.check("rejected_webhook", get_address(connection))

    return Depends(check)


def count_rejected_webhook(connection: HTTPConnection) -> None:
    """Count a webhook whose signature matches no secret.

    Webhooks that are not signed or are for an unknown repository must not be counted: they cost little, and anyone can make GitHub send
    them from the addresses that it also uses for everyone else.
    """
    limits: RateLimiter = connection.app.state.limits
    limits.charge("rejected_webhook", get_address(connection))


def get_address(connection: HTTPConnection) -> str:
    """Return the client's address. All addresses of an IPv6 network (/64) are one client."""
    return get_address_group(connection.client.host if connection.client else "")


def count_login(connection: HTTPConnection, name: str) -> None:
    """Count a sign-in for one name from one address, so that other people's attempts do not lock the user out."""
    limits: RateLimiter = connection.app.state.limits
    limits.take("login", f"{get_address(connection)} {name}")
