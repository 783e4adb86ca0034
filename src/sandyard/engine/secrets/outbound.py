"""Services for drivers that handle outgoing requests: values for placeholders, and certificates for intercepting TLS."""

from __future__ import annotations

import asyncio
import ssl

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.secrets import placeholders
from sandyard.engine.secrets.service import Secrets
from sandyard.kit.clock import SystemClock, get_time
from sandyard.kit.errors import InvalidInputError


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

    async def make_context(self, host: str) -> ssl.SSLContext:
        return self._authority.make_server_context([host])

    async def certify(self, host: str, key: str) -> str:
        """Return a certificate (PEM) that sandboxes with rules accept for this host name and public key. For drivers whose
        proxies are on other machines: the authority's key stays here. Raises InvalidInputError."""
        try:
            public = serialization.load_pem_public_key(key.encode())
        except (ValueError, UnsupportedAlgorithm):
            public = None
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise InvalidInputError("The public key of the host is not valid.")
        certificate = self._authority.issue_certificate((host,), public, get_time(SystemClock()))
        return certificate.public_bytes(serialization.Encoding.PEM).decode()
