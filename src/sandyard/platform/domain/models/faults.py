"""Explain why a provider request failed: the cause, as far as the response reveals it, and a message that names the provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sandyard.kit import bounded_json
from sandyard.kit.destinations import PrivateAddressError
from sandyard.kit.errors import ConflictError
from sandyard.kit.http_clients import describe_unreachable
from sandyard.kit.text import append_quote
from sandyard.platform.domain.models.presets import find_preset, list_presets
from sandyard.platform.domain.models.redaction import Redactor

MAX_QUOTE_LENGTH = 300
_MAX_BYTES, _MAX_VALUES = 1 << 20, 1000


class Cause(StrEnum):
    KEY = "key"  # missing, wrong or without permission
    QUOTA = "quota"  # no credit left at the provider
    BUSY = "busy"  # rate limit or overload
    MODEL = "model"  # unknown model
    ADDRESS = "address"  # the address does not serve the API
    UNREACHABLE = "unreachable"
    TUNNEL = "tunnel"  # the sandbox violated the tunnel's protocol
    ERROR = "error"


CODES: Mapping[Cause, str] = {
    Cause.KEY: "model_key_refused",
    Cause.QUOTA: "model_quota_exceeded",
    Cause.BUSY: "model_busy",
    Cause.MODEL: "model_unknown",
    Cause.ADDRESS: "model_address_wrong",
    Cause.UNREACHABLE: "model_unreachable",
    Cause.TUNNEL: "tunnel_failed",
    Cause.ERROR: "model_failed",
}
_RATE_LIMITS = ("perminute", "per minute", "try again later")
"""Phrases of Gemini for a temporary limit: it reports rate limits and used up quotas both as RESOURCE_EXHAUSTED."""
FAULT_CODES = frozenset(CODES.values())
"""Error codes of turns that failed because of a provider."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failed request. `final`: the provider would reject every other request too."""

    cause: Cause
    message: str
    final: bool = False
    at: float = field(default=0.0, compare=False)
    """When it was recorded (`time.monotonic`)."""
    alone: bool = field(default=False, compare=False)
    """Whether no other request of the turn succeeded while this one was in progress."""

    @property
    def code(self) -> str:
        return CODES[self.cause]


class ProviderTestFailedError(ConflictError):
    """The provider does not work. Nothing was saved."""

    code = "connection_test_failed"

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(f"{detail} Nothing was saved.")
        self.cause, self.detail = cause, detail

    @property
    def extra(self) -> Mapping[str, object]:
        return {"cause": self.cause, "findings": [{"what": self.cause, "ok": False, "detail": self.detail}]}


def make_label(name: str, base_url: str) -> str:
    """Return the display name of a provider: `Anthropic`, or `Anthropic (work)` for one with another name."""
    preset = find_preset(base_url) or next((known for known in list_presets() if known.name == name), None)
    if preset is None:
        return name
    return preset.title if name.lower() in (preset.name, preset.title.lower()) else f"{preset.title} ({name})"


def classify_response(
    label: str, status: int, body: str, *, model: str | None, has_key: bool, redactor: Redactor
) -> Fault:
    """Return the fault of an error response or redirect. `has_key`: a key was sent. `redactor` removes it from the provider's message."""
    cause, final = _find_cause(status, body.lower(), model)
    return Fault(
        cause, _make_sentence(cause, label, status, extract_message(body, redactor), model, has_key=has_key), final
    )


def classify_error(label: str, base_url: str, error: Exception, *, late: bool) -> Fault:
    """Return the fault of a request that got no response. `late`: it timed out."""
    if late:
        return Fault(Cause.UNREACHABLE, f"{label} did not respond in time at {base_url}.")
    message = describe_unreachable(label, base_url, error)
    if isinstance(error, PrivateAddressError):
        message += " An administrator can allow this URL by saving it again."
    return Fault(Cause.UNREACHABLE, message)


def _find_cause(status: int, body: str, model: str | None) -> tuple[Cause, bool]:
    if status == 401 or (status == 400 and ("api_key_invalid" in body or "api key not valid" in body)):
        return Cause.KEY, True
    if status >= 400 and (for_all_models := _check_quota(status, body)) is not None:
        return Cause.QUOTA, for_all_models
    if status == 403:  # perhaps for this model only
        return Cause.KEY, False
    if status == 404:
        return Cause.MODEL if model is not None else Cause.ADDRESS, False
    if status in (429, 503, 529):
        return Cause.BUSY, False
    return Cause.ADDRESS if 300 <= status < 400 else Cause.ERROR, False


def _check_quota(status: int, body: str) -> bool | None:
    """Return None if the account has quota left, True if it has none for any model, False if only this model has none."""
    if status == 402 or "insufficient_quota" in body or "credit balance is too low" in body:
        return True
    if status == 429 and not any(phrase in body for phrase in _RATE_LIMITS):
        # Gemini counts daily requests per model
        if "resource_exhausted" in body:
            return False
        if "exceeded your current quota" in body:
            return True
    return None


def _make_sentence(cause: Cause, label: str, status: int, quote: str, model: str | None, *, has_key: bool) -> str:
    if cause is Cause.KEY:
        summary = f"{label} rejected the API key" if has_key else f"{label} requires an API key"
    elif cause is Cause.QUOTA:
        return append_quote(
            f"Your {label} account has no quota left. Add credit with the provider, or use another key.", quote
        )
    elif cause is Cause.BUSY:
        summary = f"{label} is overloaded or is rate-limiting requests"
    elif cause is Cause.MODEL:
        summary = f"{label} does not have the model {model}"
    elif cause is Cause.ADDRESS:
        summary = f"{label} does not serve this API at its URL, or redirects to another one"
    else:
        summary = f"{label} returned an error"
    return append_quote(f"{summary} ({status}).", quote)


def extract_message(body: str, redactor: Redactor) -> str:
    """Return the provider's own message, if any. It is redacted before it is cut, because cutting could leave a part of a secret."""
    try:
        document: Any = bounded_json.parse(body, largest=_MAX_BYTES, values=_MAX_VALUES)
        document = document[0] if isinstance(document, list) and document else document
        error = document.get("error", document) if isinstance(document, dict) else document
        text = error.get("message", "") if isinstance(error, dict) else error
    except ValueError:
        text = body
    text = " ".join(redactor.redact(str(text)).split())
    return text[:MAX_QUOTE_LENGTH]
