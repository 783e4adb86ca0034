"""Requests to routes that only Sandyard's own engine has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from e2b import ConnectionConfig
from e2b.api import client_async
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from sandyard.kit.errors import ConflictError
from sandyard.platform.domain.sandboxes.e2b.errors import (
    EngineAuthError,
    EngineError,
    EngineInvalidError,
    EngineNotConfiguredError,
)
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport


class EngineAnswer(BaseModel):
    """Base of what the engine answers. Fields of newer engines are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


A = TypeVar("A", bound=EngineAnswer)


async def request_own_route(
    transport: EngineTransport,
    kind: type[A],
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    missing: Exception,
    unsupported: Exception,
    timeout_s: float | None = None,
) -> A:
    """Return the engine's answer. Raises `missing` if it answers 404, and `unsupported` if it cannot be Sandyard's engine.

    `timeout_s`: for routes that may take long. Then a timeout does not count against the engine.
    """
    config = transport.config
    if not config.api_key:
        raise EngineNotConfiguredError
    if config.api_url is None:
        raise unsupported

    async def ask() -> A:
        client = client_async.get_api_client(ConnectionConfig(**config.options)).get_async_httpx_client()
        timeout = config.request_timeout_s if timeout_s is None else timeout_s
        answer = await client.request(method, path, json=body, timeout=timeout)
        if answer.status_code in (404, 405):
            raise missing
        try:
            content = answer.json()
            if not answer.is_success:
                raise _make_error(answer.status_code, str(content["message"]))
            return kind.model_validate(content)
        except (ValidationError, ValueError, KeyError, TypeError):
            raise EngineError(
                f"The engine's answer ({answer.status_code}) to {method} {path} was not understood. Check that the engine and the "
                "platform have the same version."
            ) from None

    verb = path.split("/")[1]
    return await transport.call_api(verb, ask, idempotent=method == "GET", per_sandbox=timeout_s is not None)


def _make_error(status: int, message: str) -> Exception:
    if status == 401:
        return EngineAuthError()
    if status == 409:
        return ConflictError(message)
    return EngineInvalidError(message) if status in (400, 413) else EngineError(message)
