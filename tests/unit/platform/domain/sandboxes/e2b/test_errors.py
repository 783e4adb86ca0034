from __future__ import annotations

import asyncio

import httpx
import pytest
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b import exceptions as sdk

from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.kit.secret import Secret
from sandyard.platform.domain.sandboxes.e2b.errors import EngineError, translate

KEY = Secret("e2b_0123456789abcdef")


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (sdk.AuthenticationException("401: Unauthorized"), "engine_auth", 502),
        (sdk.SandboxException("403: no", status_code=403), "engine_auth", 502),
        (sdk.RateLimitException("429: too many"), "engine_quota", 429),
        (
            sdk.RateLimitException(
                f"starting '{'long ' * 200}': Resource temporarily unavailable: Rate limit exceeded, please try again later."
            ),
            "sandbox_processes_full",
            409,
        ),
        (sdk.InvalidArgumentException("the name is too long"), "engine_invalid", 400),
        (sdk.TemplateException("rebuild it"), "engine_invalid", 400),
        (sdk.SandboxException("400: bad", status_code=400), "engine_invalid", 400),
        (sdk.SandboxException("404: template 'x' not found", status_code=404), "engine_invalid", 400),
        (sdk.SandboxNotFoundException("gone"), "sandbox_not_found", 404),
        (sdk.SandboxNotRunningException("paused"), "sandbox_not_running", 409),
        (sdk.SandboxException("409: it is paused", status_code=409), "sandbox_not_running", 409),
        (sdk.TimeoutException("late"), "engine_timeout", 504),
        (httpx.ReadTimeout("late"), "engine_timeout", 504),
        (TimeoutError(), "engine_timeout", 504),
        (sdk.SandboxException("504: late"), "engine_timeout", 504),
        (sdk.SandboxUnreachableException("away"), "engine_unreachable", 503),
        (httpx.ConnectError("refused"), "engine_unreachable", 503),
        (httpx.ReadError("reset"), "engine_unreachable", 503),
        (ConnectionResetError(), "engine_unreachable", 503),
        (ConnectError(Code.UNKNOWN, "reset"), "engine_unreachable", 503),
        (sdk.SandboxException("502: bad gateway", status_code=502), "engine_unreachable", 503),
        (sdk.ServiceBusyException("503: full"), "engine_busy", 503),
        (sdk.NotEnoughSpaceException("full"), "not_enough_space", 507),
        (sdk.FileNotFoundException("no"), "file_not_found", 404),
        (sdk.SandboxException("500: boom", status_code=500), "engine_failed", 502),
        (Exception("Body of the request is None"), "engine_failed", 502),
        (KeyError("sandboxID"), "engine_failed", 502),
    ],
)
def test_translates_errors(error: Exception, code: str, status: int) -> None:
    ours = translate(error, KEY)
    assert isinstance(ours, SandyardError)
    assert (ours.code, ours.status) == (code, status)
    assert ours.message.rstrip()[-1] in ".'" or "It said: " in ours.message
    if isinstance(ours, EngineError):
        assert ours.transient == (code in {"engine_timeout", "engine_unreachable", "engine_busy"})


def test_unsent_means_never_arrived() -> None:
    def unsent(error: Exception) -> bool:
        ours = translate(error)
        assert isinstance(ours, EngineError)
        return ours.unsent

    assert unsent(httpx.ConnectError("refused"))
    assert unsent(sdk.ServiceBusyException("503"))
    assert not unsent(httpx.ReadError("reset"))
    assert not unsent(httpx.ReadTimeout("late"))


def test_never_shows_key() -> None:
    for error in (
        sdk.InvalidArgumentException(f"the header X-API-KEY: {KEY.reveal()} is odd"),
        sdk.AuthenticationException(f"401: no such key {KEY.reveal()}"),
        sdk.SandboxException(f"500: {KEY.reveal()}", status_code=500),
        Exception(KEY.reveal()),
    ):
        assert KEY.reveal() not in str(translate(error, KEY))


def test_keeps_errors_of_other_origin() -> None:
    for error in (InvalidInputError("x"), asyncio.CancelledError(), KeyboardInterrupt()):
        assert translate(error, KEY) is error
