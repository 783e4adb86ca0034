"""Test a provider with one tiny request and its real key, and describe the result."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from sandyard.kit import bounded_json
from sandyard.kit.destinations import PrivateAddressError
from sandyard.kit.pacing import take_turn
from sandyard.kit.secret import Secret
from sandyard.kit.text import make_storable
from sandyard.platform.db.models import ModelProvider
from sandyard.platform.domain.models import apis
from sandyard.platform.domain.models.apis import ModelRequest
from sandyard.platform.domain.models.faults import Cause, Fault, classify_error, classify_response, make_label
from sandyard.platform.domain.models.model import ModelApi, ProviderTestResult
from sandyard.platform.domain.models.presets import find_preset
from sandyard.platform.domain.models.redaction import Redactor

TIMEOUT = httpx.Timeout(60, connect=15)
TOTAL_SECONDS = 60.0
"""`TIMEOUT` alone would let a server send its response byte by byte."""
MAX_LISTED = 100
_MAX_BYTES, _MAX_VALUES = 1 << 20, 50_000
_MAX_DETAIL_LENGTH = 600
_PING = "Say ok."


async def check_provider(client: httpx.AsyncClient, provider: ModelProvider, key: Secret | None) -> ProviderTestResult:
    """Test a provider with its first model and a response of as few tokens as its API allows. If it has no model, request its list
    of models. Returns failures as results."""
    kind, model = ModelApi(provider.kind), _choose_model(provider)
    label = make_label(provider.name, provider.base_url)
    request, body = _make_request(kind, model)
    headers = [*apis.make_key_headers(kind, key), ("accept-encoding", "identity")]
    if kind is ModelApi.ANTHROPIC:
        headers.append(("anthropic-version", "2023-06-01"))
    redactor = Redactor(key)
    started, listed = time.monotonic(), list[str]()
    fault: Fault | None = None
    try:
        async with (
            asyncio.timeout(TOTAL_SECONDS),
            client.stream(
                "POST" if body else "GET",
                apis.build_url(provider.base_url, request),
                headers=headers,
                json=body,
                timeout=TIMEOUT,
            ) as response,
        ):
            beginning = await _read_beginning(response)
            if not response.is_success:
                text = beginning.decode(errors="replace")
                fault = classify_response(
                    label, response.status_code, text, model=model, has_key=key is not None, redactor=redactor
                )
            elif beginning.lstrip()[:1] not in (b"{", b"["):
                fault = Fault(
                    Cause.ADDRESS, f"{label} responds, but not with JSON. Check that its URL is that of the API."
                )
            elif model is None:
                listed = parse_models(beginning)
    except (httpx.HTTPError, httpx.InvalidURL, PrivateAddressError, TimeoutError) as error:
        late = isinstance(error, (httpx.TimeoutException, TimeoutError))
        fault = classify_error(label, provider.base_url, error, late=late)
    duration_ms = round((time.monotonic() - started) * 1000)
    if fault is not None:
        detail = make_storable(redactor.redact(fault.message))[:_MAX_DETAIL_LENGTH]
        return ProviderTestResult(False, detail, model, duration_ms, cause=fault.cause)
    detail = (
        f"{label} works: the model {model} answered."
        if model
        else _describe_success(label, listed, has_key=key is not None)
    )
    return ProviderTestResult(
        True, make_storable(detail)[:_MAX_DETAIL_LENGTH], model, duration_ms, models=tuple(listed)
    )


def _choose_model(provider: ModelProvider) -> str | None:
    """Return the model to test with. Some lists of models are public and so do not test the key."""
    preset = find_preset(provider.base_url)
    known = preset.models if preset is not None and preset.kind is ModelApi.OPENAI_CHAT else ()
    return next(iter([*provider.models, *known]), None)


def _describe_success(label: str, listed: list[str], *, has_key: bool) -> str:
    count = f"{len(listed)} model{'' if len(listed) == 1 else 's'}"
    return f"{label} accepts the key and has {count}." if has_key else f"{label} responds and has {count}."


def _make_request(kind: ModelApi, model: str | None) -> tuple[ModelRequest, dict[str, Any] | None]:
    if model is None:
        return ModelRequest("/v1beta/models" if kind is ModelApi.GEMINI else "/v1/models", "", counted=False), None
    message = [{"role": "user", "content": _PING}]
    if kind is ModelApi.GEMINI:
        body: dict[str, Any] = {
            "contents": [{"role": "user", "parts": [{"text": _PING}]}],
            "generationConfig": {"maxOutputTokens": 1},
        }
        return ModelRequest(f"/v1beta/models/{model}:generateContent", "", counted=True), body
    if kind is ModelApi.OPENAI:  # whose minimum is 16
        return ModelRequest("/v1/responses", "", counted=True), {
            "model": model,
            "input": _PING,
            "max_output_tokens": 16,
        }
    path = "/v1/messages" if kind is ModelApi.ANTHROPIC else "/v1/chat/completions"
    return ModelRequest(path, "", counted=True), {"model": model, "messages": message, "max_tokens": 1}


async def _read_beginning(response: httpx.Response) -> bytes:
    beginning = b""
    async for chunk in response.aiter_bytes():
        await take_turn()
        beginning += chunk
        if len(beginning) >= _MAX_BYTES:
            break
    return beginning[:_MAX_BYTES]


def parse_models(beginning: bytes) -> list[str]:
    """Return the names in a list of models in the format of OpenAI, Anthropic or Gemini."""
    try:
        document: Any = bounded_json.parse(beginning, largest=_MAX_BYTES, values=_MAX_VALUES)
    except ValueError:
        return []
    found = (document.get("data") or document.get("models")) if isinstance(document, dict) else document
    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    names = [entry.get("id") or entry.get("name") for entry in entries]
    return [name.removeprefix("models/") for name in names if isinstance(name, str)][:MAX_LISTED]
