"""Errors of the engine, and the translation of the SDK's exceptions to them.

A `transient` error may disappear on a retry. An `unsent` error is known to have changed nothing, so that even a call
that must not run twice may be repeated.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import ClassVar

import httpx
from connectrpc.errors import ConnectError
from e2b.exceptions import (
    AuthenticationException,
    FileNotFoundException,
    GuestUnresponsiveException,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    RateLimitException,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxUnreachableException,
    ServiceBusyException,
    TemplateException,
    TimeoutException,
)
from pyqwest import ReadError, StreamError, WriteError

from sandyard.kit.errors import (
    BusyError,
    ConflictError,
    FullError,
    InvalidInputError,
    NoSpaceError,
    NotFoundError,
    SandyardError,
)
from sandyard.kit.secret import Secret
from sandyard.kit.text import append_quote


class EngineError(SandyardError):
    """The engine returned an unexplained error. Check its log."""

    code, status = "engine_failed", 502
    transient: ClassVar[bool] = False

    def __init__(self, message: str | None = None, *, unsent: bool = False) -> None:
        super().__init__(message)
        self.unsent = unsent


class EngineNotConfiguredError(EngineError):
    """No engine is configured. Set E2B_API_KEY to use E2B Cloud. To use your own engine, also set E2B_API_URL and E2B_SANDBOX_URL.

    Then restart the platform.
    """

    code, status = "engine_not_configured", 503


class EngineAuthError(EngineError):
    """The engine rejected this platform's API key. The operator must set a valid E2B_API_KEY."""

    # 502 and not 401 or 403: the caller's own login is valid, and a client must not log out or ask for another one
    code, status = "engine_auth", 502


class EngineQuotaError(EngineError, FullError):
    """The engine's limit of sandboxes or requests is reached. Delete unused sandboxes, or try again later."""

    code, status = "engine_quota", 429


class EngineInvalidError(EngineError, InvalidInputError):
    """The engine rejected this request."""

    code, status = "engine_invalid", 400


class TemplateNotFoundError(EngineInvalidError):
    """The engine does not have this template or snapshot."""

    code = "template_not_found"


class SandboxNotFoundError(EngineError, NotFoundError):
    """The sandbox no longer exists on the engine: it was deleted or has expired. Create a new one."""

    code, status = "sandbox_not_found", 404


class SandboxNotRunningError(EngineError, ConflictError):
    """The sandbox is paused. Resume it first."""

    code, status = "sandbox_not_running", 409


class EngineTimeoutError(EngineError):
    """The engine did not respond in time. Try again; if it keeps failing, check whether the engine is overloaded."""

    code, status = "engine_timeout", 504
    transient = True


class EngineUnreachableError(EngineError):
    """The engine could not be reached. Check that it is running and that E2B_API_URL is correct, then try again."""

    code, status = "engine_unreachable", 503
    transient = True


class CircuitOpenError(EngineUnreachableError):
    """The engine failed repeatedly and is retried in a moment. Try again shortly."""


class SandboxUnreachableError(EngineUnreachableError):
    """The sandbox does not respond, although the engine reports it as running. Try again; if it keeps failing, pause and resume it."""


class EngineBusyError(EngineError, BusyError):
    """The engine is busy and did nothing. Try again in a moment."""

    code, status = "engine_busy", 503
    transient = True


class NotEnoughSpaceError(EngineError, NoSpaceError):
    """The sandbox's disk is full. Delete files in it, then try again."""

    code, status = "not_enough_space", 507


class ProcessesFullError(EngineError, ConflictError):
    """The sandbox has reached its limit of processes and cannot start another one. Stop some of them, or delete the sandbox."""

    code, status = "sandbox_processes_full", 409


class FileMissingError(NotFoundError):
    """There is no such file in the sandbox."""

    code, status = "file_not_found", 404


class TerminalNotFoundError(NotFoundError):
    """This terminal no longer exists: its shell has ended. Open a new one."""

    code, status = "terminal_not_found", 404


_NO_PROCESS = re.compile(r"resource temporarily unavailable|cannot fork\b", re.IGNORECASE)
_NO_PROCESS_LAST = re.compile(r"resource temporarily unavailable(: rate limit exceeded[\w ,]*)?\W*\Z", re.IGNORECASE)
"""envd's message for EAGAIN, and what the SDK appends to it."""
_UNKNOWN_USER = re.compile(r"unknown user|invalid username|looking up user", re.IGNORECASE)

Rule = tuple[type[BaseException] | tuple[type[BaseException], ...], Callable[[str], SandyardError]]


def _with_engine_message(make: type[EngineError]) -> Callable[[str], SandyardError]:
    """Return a factory for the class's own message followed by the engine's."""

    def build(message: str) -> SandyardError:
        return make(append_quote(make().message, message))

    return build


_RULES: tuple[Rule, ...] = (  # the first match applies
    (
        (httpx.ConnectError, httpx.ConnectTimeout, ConnectionRefusedError),
        lambda _: EngineUnreachableError(unsent=True),
    ),
    (AuthenticationException, lambda _: EngineAuthError()),
    (RateLimitException, _with_engine_message(EngineQuotaError)),
    (ServiceBusyException, lambda _: EngineBusyError(unsent=True)),
    (NotEnoughSpaceException, lambda _: NotEnoughSpaceError()),
    ((InvalidArgumentException, TemplateException), _with_engine_message(EngineInvalidError)),
    (SandboxNotFoundException, lambda _: SandboxNotFoundError()),
    (FileNotFoundException, lambda _: FileMissingError()),
    (NotFoundException, _with_engine_message(SandboxNotFoundError)),
    (SandboxNotRunningException, lambda _: SandboxNotRunningError()),
    (SandboxUnreachableException, lambda _: SandboxUnreachableError()),
    (GuestUnresponsiveException, _with_engine_message(SandboxNotRunningError)),
    ((TimeoutException, httpx.TimeoutException, TimeoutError), lambda _: EngineTimeoutError()),
    (
        (httpx.TransportError, OSError, ReadError, WriteError, StreamError, ConnectError),
        lambda _: EngineUnreachableError(),
    ),
)

_STATUSES: dict[int, Callable[[str], SandyardError]] = {
    400: _with_engine_message(EngineInvalidError),
    401: lambda _: EngineAuthError(),
    403: lambda _: EngineAuthError(),
    404: _with_engine_message(EngineInvalidError),  # what the request named besides the sandbox, such as its template
    409: _with_engine_message(SandboxNotRunningError),
    413: _with_engine_message(EngineInvalidError),
    422: _with_engine_message(EngineInvalidError),
    429: _with_engine_message(EngineQuotaError),
    501: _with_engine_message(EngineInvalidError),  # such as an isolation level that it does not have
    502: lambda _: EngineUnreachableError(),
    503: lambda _: EngineBusyError(unsent=True),
    504: lambda _: EngineTimeoutError(),
    507: lambda _: NotEnoughSpaceError(),
}


def translate(error: BaseException, key: Secret | None = None) -> BaseException:
    """Return our error for an exception of the SDK or its transport. No message contains `key`.

    Returns our own errors, cancellation and process-ending exceptions unchanged.
    """
    if isinstance(error, SandyardError | asyncio.CancelledError) or not isinstance(error, Exception):
        return error
    message = _sanitize(str(error), key)
    make = next((make for kinds, make in _RULES if isinstance(error, kinds)), _with_engine_message(EngineError))
    if isinstance(error, AuthenticationException) and _UNKNOWN_USER.search(message):
        return EngineInvalidError("The sandbox has no user with that name.")  # how envd reports it
    # at the end, after the whole command
    if isinstance(error, SandboxException) and _NO_PROCESS_LAST.search(str(error)):
        return ProcessesFullError(unsent=True)
    if isinstance(error, SandboxException):
        make = _STATUSES.get(error.status_code or _parse_leading_status(message) or 0, make)
    return make(message)


def translate_create(error: Exception, template: str, key: Secret | None = None) -> BaseException:
    """Return our error for an exception of a create request, in which only the template can be missing."""
    message = str(error)
    status = getattr(error, "status_code", None) or _parse_leading_status(message)
    if isinstance(error, NotFoundException) or (isinstance(error, SandboxException) and status == 404):
        return _with_engine_message(TemplateNotFoundError)(
            _sanitize(message, key) or f"template {template!r} not found"
        )
    return translate(error, key)


def says_processes_full(message: str) -> bool:
    """Return whether a message of a shell, a program or an engine means that no process could be started (EAGAIN)."""
    return _NO_PROCESS.search(message) is not None


def _parse_leading_status(message: str) -> int | None:
    """Parse the status code that the SDK puts before the message, sometimes nowhere else."""
    number = message.partition(":")[0]
    return int(number) if number.isdigit() and len(number) == 3 else None


def _sanitize(message: str, key: Secret | None) -> str:
    """Return one line of bounded length without the key."""
    if key:
        message = message.replace(key.reveal(), "***")
    return " ".join(message.split())[:500]
