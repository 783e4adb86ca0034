"""Interpretation of the errors of each provider."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from sandyard.kit.secret import Secret
from sandyard.platform.domain.models.faults import (
    FAULT_CODES,
    MAX_QUOTE_LENGTH,
    Cause,
    ProviderTestFailedError,
    classify_error,
    classify_response,
    make_label,
)
from sandyard.platform.domain.models.redaction import Redactor

ANTHROPIC = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
GEMINI = {
    "error": {
        "code": 400,
        "message": "API key not valid. Please pass a valid API key.",
        "status": "INVALID_ARGUMENT",
        "details": [{"reason": "API_KEY_INVALID"}],
    }
}
CREDIT = {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API."}}
QUOTA = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
QUOTA_WITHOUT_CODE = {"error": {"message": "You exceeded your current quota, please check your plan.", "code": None}}
ANTHROPIC_LIMIT = {
    "error": {"type": "rate_limit_error", "message": "This would exceed your organization's rate limit."}
}
OPENAI_LIMIT = {
    "error": {"message": "Rate limit reached for gpt-5 on requests per min.", "code": "rate_limit_exceeded"}
}


def gemini_quota(quota: str) -> dict[str, Any]:
    words = "You exceeded your current quota, please check your plan and billing details."
    violations = [{"quotaId": quota}]
    return {"error": {"message": words, "status": "RESOURCE_EXHAUSTED", "details": [{"violations": violations}]}}


NOTHING = {"error": {"message": "no"}}


@pytest.mark.parametrize(
    ("status", "body", "cause", "final"),
    [
        (401, ANTHROPIC, Cause.KEY, True),
        (400, GEMINI, Cause.KEY, True),
        (400, CREDIT, Cause.QUOTA, True),
        (402, NOTHING, Cause.QUOTA, True),
        (429, QUOTA, Cause.QUOTA, True),
        (429, QUOTA_WITHOUT_CODE, Cause.QUOTA, True),
        (403, CREDIT, Cause.QUOTA, True),
        (429, gemini_quota("GenerateRequestsPerDayPerProjectPerModel"), Cause.QUOTA, False),
        (429, gemini_quota("GenerateRequestsPerMinutePerProjectPerModel"), Cause.BUSY, False),
        (429, ANTHROPIC_LIMIT, Cause.BUSY, False),
        (429, OPENAI_LIMIT, Cause.BUSY, False),
        (429, NOTHING, Cause.BUSY, False),
        (529, NOTHING, Cause.BUSY, False),
        (403, NOTHING, Cause.KEY, False),
        (404, NOTHING, Cause.MODEL, False),
        (302, NOTHING, Cause.ADDRESS, False),
        (400, NOTHING, Cause.ERROR, False),
        (500, NOTHING, Cause.ERROR, False),
    ],
)
def test_cause_of_fault(status: int, body: dict[str, Any], cause: Cause, *, final: bool) -> None:
    fault = classify_response("Anthropic", status, json.dumps(body), model="m", has_key=True, redactor=Redactor())
    assert (fault.cause, fault.final) == (cause, final)
    if cause is Cause.QUOTA:
        assert fault.message.startswith("Your Anthropic account has no quota left. Add credit with the provider, ")
        assert fault.code == "model_quota_exceeded"
    else:
        assert fault.message.startswith("Anthropic ")
        assert f"({status})" in fault.message
    assert fault.code in FAULT_CODES
    assert len(fault.code) <= 40


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            httpx.ConnectError("All connection attempts failed"),
            "house could not be reached: no server is listening at URL.",
        ),
        (
            httpx.ConnectError("[Errno -2] Name or service not known"),
            "house could not be reached: the name model.test could not be resolved. Check DNS or the proxy of the platform's machine.",
        ),
        (
            httpx.ConnectError("model.test could not be resolved"),
            "house could not be reached: the name model.test could not be resolved. Check DNS or the proxy of the platform's machine.",
        ),
        (
            httpx.ConnectError("certificate verify failed: self-signed certificate"),
            "house could not be reached at URL: certificate verify failed: self-signed certificate.",
        ),
        (httpx.RemoteProtocolError(""), "house could not be reached at URL: RemoteProtocolError."),
    ],
)
def test_missing_answer_is_explained_without_library_names(error: Exception, message: str) -> None:
    url = "http://model.test:9"
    fault = classify_error("house", url, error, late=False)
    assert fault.message == message.replace("URL", url)
    assert str(ProviderTestFailedError(fault.cause, fault.message)) == f"{fault.message} Nothing was saved."


def test_key_is_redacted_before_message_is_cut() -> None:
    """A cut through the key would leave its beginning."""
    key = "sk-planted-0123456789abcdef"
    for start in range(MAX_QUOTE_LENGTH - len(key) - 5, MAX_QUOTE_LENGTH + 1):
        body = json.dumps({"error": {"message": "m" * start + key}})
        fault = classify_response("P", 400, body, model="m", has_key=True, redactor=Redactor(Secret(key)))
        assert "sk-" not in fault.message


def test_message_of_fault() -> None:
    fault = classify_response("Anthropic", 401, json.dumps(ANTHROPIC), model=None, has_key=True, redactor=Redactor())
    assert fault.message == "Anthropic rejected the API key (401). It said: “invalid x-api-key”"
    keyless = classify_response("Anthropic", 401, "", model=None, has_key=False, redactor=Redactor())
    assert keyless.message == "Anthropic requires an API key (401)."
    assert make_label("anthropic", "https://api.anthropic.com") == "Anthropic"
    assert make_label("work", "https://api.anthropic.com") == "Anthropic (work)"
    assert make_label("house", "http://127.0.0.1:11434") == "house"
