"""How often one person may create and execute, and how often one address may try to sign in or send webhooks.

A bucket holds a minute's worth and is refilled evenly. Buckets live in this process: each replica counts for itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import Depends
from starlette.requests import HTTPConnection

from sandyard.kit.clock import Clock
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.problems import TooManyRequestsError
from sandyard.platform.settings import PlatformSettings

Kind = Literal["create", "execute", "login", "address", "webhook"]
_WORDS = {
    "create": "create {n} things",
    "execute": "run {n} commands or send {n} messages",
    "login": "try to sign in {n} times",
}
_WORDS |= {"address": _WORDS["login"], "webhook": "send {n} webhooks"}
_MANY = 10_000


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class Limits:
    def __init__(self, settings: PlatformSettings, clock: Clock) -> None:
        self._per_minute: Mapping[str, int] = {
            "create": settings.creates_per_minute,
            "execute": settings.executes_per_minute,
            "login": settings.logins_per_minute,
            "address": settings.logins_per_minute * 10,
            "webhook": settings.executes_per_minute,
        }
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def take(self, kind: Kind, who: str) -> None:
        """Raises TooManyRequestsError, which says how long to wait."""
        size, now = self._per_minute[kind], self._clock.now()
        bucket = self._buckets.get((kind, who))
        if bucket is None:
            if len(self._buckets) >= _MANY:
                self._forget_full(now)
            bucket = self._buckets[kind, who] = _Bucket(size, now)
        bucket.left = self._left(bucket, size, now)
        bucket.at = now
        if bucket.left < 1:
            wait = (1 - bucket.left) * 60 / size
            words = _WORDS[kind].format(n=size)
            raise TooManyRequestsError(f"You may {words} a minute; try again in {math.ceil(wait)} s.", wait)
        bucket.left -= 1

    @staticmethod
    def _left(bucket: _Bucket, size: int, now: float) -> float:
        return min(size, bucket.left + max(0.0, now - bucket.at) * size / 60)

    def _forget_full(self, now: float) -> None:
        """A full bucket remembers nothing; when too many are not full, the oldest half goes."""
        for key, bucket in list(self._buckets.items()):
            if self._left(bucket, self._per_minute[key[0]], now) >= self._per_minute[key[0]]:
                del self._buckets[key]
        if len(self._buckets) >= _MANY:
            by_age = sorted(self._buckets, key=lambda key: self._buckets[key].at)
            for key in by_age[: _MANY // 2]:
                del self._buckets[key]


def limited(kind: Literal["create", "execute"]) -> Any:
    """For a route's `dependencies=[limited("create")]`: counts for the caller."""

    async def check(connection: HTTPConnection, principal: Caller) -> None:
        limits: Limits = connection.app.state.limits
        limits.take(kind, principal.user_id)

    return Depends(check)


def login_limited() -> Any:
    """Counts for the address, generously: a proxy is one for all. The name counts too, in `count_login`."""
    return _by_address("address")


def webhook_limited() -> Any:
    """Counts for the address: before its signature was looked at, nothing else is known of who sends one."""
    return _by_address("webhook")


def _by_address(kind: Literal["address", "webhook"]) -> Any:
    async def check(connection: HTTPConnection) -> None:
        limits: Limits = connection.app.state.limits
        limits.take(kind, connection.client.host if connection.client else "")

    return Depends(check)


def count_login(connection: HTTPConnection, name: str) -> None:
    """For one name from one address: nobody is locked out by what others try."""
    limits: Limits = connection.app.state.limits
    limits.take("login", f"{connection.client.host if connection.client else ''} {name}")
