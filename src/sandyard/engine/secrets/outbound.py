"""Services for drivers that handle outgoing requests: values for placeholders, and certificates for intercepting TLS."""

from __future__ import annotations

import asyncio
import ssl

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.secrets import placeholders
from sandyard.engine.secrets.service import Secrets


class SecretsOutbound:
    """Implements `contract.Outbound` with the stored secrets and an authority that sandboxes with rules trust."""

    def __init__(self, secrets: Secrets, authority: Authority) -> None:
        """Must be created in the event loop that the secrets belong to."""
        self._secrets = secrets
        self._authority = authority
        self._loop = asyncio.get_running_loop()

    async def fill(self, value: str) -> str:
        if not placeholders.contains_secret(value):
            return value
        if asyncio.get_running_loop() is self._loop:
            return await self._fill(value)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._fill(value), self._loop))

    async def _fill(self, value: str) -> str:
        return placeholders.fill(value, lambda name: self._secrets.reveal(name).reveal())

    def holds_secret(self, value: str) -> bool:
        return placeholders.contains_secret(value)

    def context(self, host: str) -> ssl.SSLContext:
        return self._authority.server_context([host])
