"""Secrets and certificates for the network rules of sandboxes on a host, requested from the engine over its own connection.

A host stores no secrets and never gets the key of the engine's authority. It creates a key in memory, and the engine signs
certificates for that key, but only for names in the network rules of this host's sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandyard.engine.secrets import placeholders

T = TypeVar("T")
Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]

_CONTEXT_S = 24 * 3600.0  # certificates are valid for a week
_MAX_CONTEXTS = 512
_MAX_CONCURRENT_CALLS = 200
"""How many calls may wait for the engine, which accepts only a few times as many."""


class RemoteOutbound:
    """Implements `contract.Outbound`. `ask` calls the engine; it belongs to the event loop that creates this object."""

    def __init__(self, ask: Ask) -> None:
        self._ask_engine = ask
        self._call_slots = asyncio.Semaphore(_MAX_CONCURRENT_CALLS)
        self._loop = asyncio.get_running_loop()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[str, tuple[float, ssl.SSLContext]] = OrderedDict()

    async def _ask(self, verb: str, arguments: Mapping[str, Any]) -> Any:
        async with self._call_slots:
            return await self._ask_engine(verb, arguments)

    async def fill(self, value: str) -> str:
        if not placeholders.contains_secret(value):
            return value
        return str(await self._run_in_engine_loop(self._ask("fill", {"value": value})))

    def holds_secret(self, value: str) -> bool:
        return placeholders.contains_secret(value)

    async def make_context(self, host: str) -> ssl.SSLContext:
        return await self._run_in_engine_loop(self._get_context(host))

    async def _run_in_engine_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in the event loop of the connection to the engine. Can be called in any event loop."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _get_context(self, host: str) -> ssl.SSLContext:
        made_at, context = self._contexts.get(host, (float("-inf"), None))
        now = time.monotonic()
        if context is not None and now - made_at < _CONTEXT_S:
            self._contexts.move_to_end(host)
            return context
        public = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        certificate = str(await self._ask("certify", {"host": host, "key": public.decode()}))
        context = self._make_context(certificate.encode())
        self._contexts[host] = now, context
        if len(self._contexts) > _MAX_CONTEXTS:
            self._contexts.popitem(last=False)
        return context

    def _make_context(self, certificate: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        key = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        fd = os.memfd_create("sandyard-certificate")  # Python's ssl module reads keys from paths only
        try:
            with contextlib.closing(os.fdopen(os.dup(fd), "wb")) as file:
                file.write(certificate + key)
            context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return context
