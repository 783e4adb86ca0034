"""Why a provider does not answer: the cause, as far as its answer says it, and a sentence that names the provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sandyard.kit import bounded_json
from sandyard.kit.connection_faults import describe_unreachable
from sandyard.kit.errors import ConflictError
from sandyard.platform.domain.models.presets import all_presets, preset_at

LONGEST_QUOTE = 300
_LARGEST, _VALUES = 1 << 20, 1000


class Cause(StrEnum):
    KEY = "key"  # missing, wrong, or not allowed to do this
    QUOTA = "quota"  # nothing is left to spend at the provider
    BUSY = "busy"  # too many requests, or overloaded
    MODEL = "model"  # it has no such model
    ADDRESS = "address"  # what is at that address is not the API
    UNREACHABLE = "unreachable"
    ERROR = "error"


CODES: Mapping[Cause, str] = {
    Cause.KEY: "model_key_refused",
    Cause.QUOTA: "model_quota_exceeded",
    Cause.BUSY: "model_busy",
    Cause.MODEL: "model_unknown",
    Cause.ADDRESS: "model_address_wrong",
    Cause.UNREACHABLE: "model_unreachable",
    Cause.ERROR: "model_failed",
}
_RATE_LIMITS = ("perminute", "per minute", "try again later")
"""What Gemini says of a limit that ends by itself: it answers both cases with RESOURCE_EXHAUSTED."""
FAULT_CODES = frozenset(CODES.values())
"""The error codes of turns that failed because of a provider."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`final`: the provider would refuse every other request as well."""

    cause: Cause
    sentence: str
    final: bool = False
    at: float = field(default=0.0, compare=False)
    """When it was noted (`time.monotonic`)."""
    alone: bool = field(default=False, compare=False)
    """No other request of the turn was answered while this one was under way."""

    @property
    def code(self) -> str:
        return CODES[self.cause]


class ProviderTestFailedError(ConflictError):
    """The provider does not work, and nothing was stored."""

    code = "connection_test_failed"

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(f"{detail} Nothing was saved.")
        self.cause, self.detail = cause, detail

    @property
    def extra(self) -> Mapping[str, object]:
        return {"cause": self.cause, "findings": [{"what": self.cause, "ok": False, "detail": self.detail}]}


def label_of(name: str, base_url: str) -> str:
    """What people call a provider: `Anthropic`, or `Anthropic (work)` for one of another name."""
    preset = preset_at(base_url) or next((one for one in all_presets() if one.name == name), None)
    if preset is None:
        return name
    return preset.title if name.lower() in (preset.name, preset.title.lower()) else f"{preset.title} ({name})"


def fault_of_answer(label: str, status: int, body: str, *, model: str | None, keyed: bool) -> Fault:
    """For an answer that is an error, or leads elsewhere. `keyed`: a key was shown."""
    cause, final = _cause(status, body.lower(), model)
    return Fault(cause, _sentence(cause, label, status, _quote(body), model, keyed=keyed), final)


def fault_of_error(label: str, base_url: str, error: Exception, *, late: bool) -> Fault:
    """For a request that got no answer."""
    if late:
        return Fault(Cause.UNREACHABLE, f"{label} did not answer in time at {base_url}.")
    return Fault(Cause.UNREACHABLE, describe_unreachable(label, base_url, error))


def _cause(status: int, body: str, model: str | None) -> tuple[Cause, bool]:
    if status == 401 or (status == 400 and ("api_key_invalid" in body or "api key not valid" in body)):
        return Cause.KEY, True
    if status >= 400 and (out_of_quota := _out_of_quota(status, body)) is not None:
        return Cause.QUOTA, out_of_quota
    if status == 403:  # perhaps for this model only
        return Cause.KEY, False
    if status == 404:
        return Cause.MODEL if model is not None else Cause.ADDRESS, False
    if status in (429, 503, 529):
        return Cause.BUSY, False
    return Cause.ADDRESS if 300 <= status < 400 else Cause.ERROR, False


def _out_of_quota(status: int, body: str) -> bool | None:
    """None: the account has quota left. Else whether that counts for every model of the account."""
    if status == 402 or "insufficient_quota" in body or "credit balance is too low" in body:
        return True
    if status == 429 and not any(words in body for words in _RATE_LIMITS):
        # Gemini counts requests of a day for each model
        if "resource_exhausted" in body:
            return False
        if "exceeded your current quota" in body:
            return True
    return None


def _sentence(cause: Cause, label: str, status: int, quote: str, model: str | None, *, keyed: bool) -> str:
    if cause is Cause.KEY:
        said = f"{label} refused the API key" if keyed else f"{label} needs an API key"
    elif cause is Cause.QUOTA:
        return f"Your {label} account has no quota left. Add credit with the provider, or choose another key.{quote}"
    elif cause is Cause.BUSY:
        said = f"{label} is overloaded or limits the rate of requests"
    elif cause is Cause.MODEL:
        said = f"{label} does not have the model {model}"
    elif cause is Cause.ADDRESS:
        said = f"{label} has no such API at its address, or redirects to another one"
    else:
        said = f"{label} answered with an error"
    return f"{said} ({status}).{quote}"


def _quote(body: str) -> str:
    """The provider's own sentence, if it has one."""
    try:
        told: Any = bounded_json.parse(body, largest=_LARGEST, values=_VALUES)
        told = told[0] if isinstance(told, list) and told else told
        error = told.get("error", told) if isinstance(told, dict) else told
        words = error.get("message", "") if isinstance(error, dict) else error
    except ValueError:
        words = body
    text = " ".join(str(words).split())
    return f" It said: {text[:LONGEST_QUOTE]}" if text else ""
