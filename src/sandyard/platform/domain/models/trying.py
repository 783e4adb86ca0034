"""Does a provider work? One tiny request with its real key, and a sentence about what came of it."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx

from sandyard.kit.secret import Secret
from sandyard.kit.text import storable
from sandyard.platform.db.models import ModelProvider
from sandyard.platform.domain.agents.model import ModelApi
from sandyard.platform.domain.models import apis
from sandyard.platform.domain.models.apis import Asked
from sandyard.platform.domain.models.model import Verdict
from sandyard.platform.domain.models.redaction import Redactor

TIMEOUT = httpx.Timeout(60, connect=15)
_MOST = 64 << 10
_SHOWN = 300
_PING = "Say ok."


async def tried(client: httpx.AsyncClient, provider: ModelProvider, key: Secret | None) -> Verdict:
    """With its first model when it has one: a token's worth of an answer. Else its list of models is asked for."""
    kind, model = ModelApi(provider.kind), next(iter(provider.models), None)
    asked, body = _request(kind, model)
    headers = [*apis.key_headers(kind, key), ("accept-encoding", "identity")]
    if kind is ModelApi.ANTHROPIC:
        headers.append(("anthropic-version", "2023-06-01"))
    began = time.monotonic()
    try:
        async with client.stream(
            "POST" if body else "GET",
            apis.address(provider.base_url, asked),
            headers=headers,
            json=body,
            timeout=TIMEOUT,
        ) as response:
            said = await _beginning(response)
            ok, detail = _judged(response.status_code, said, model)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        ok, detail = False, f"{provider.base_url} cannot be reached: {type(error).__name__}. {error}"
    detail = storable(Redactor(key).text(detail))
    return Verdict(ok, detail[: 2 * _SHOWN], model, round((time.monotonic() - began) * 1000))


def _request(kind: ModelApi, model: str | None) -> tuple[Asked, dict[str, Any] | None]:
    if model is None:
        return Asked("/v1beta/models" if kind is ModelApi.GEMINI else "/v1/models", "", counted=False), None
    message = [{"role": "user", "content": _PING}]
    if kind is ModelApi.GEMINI:
        body: dict[str, Any] = {
            "contents": [{"role": "user", "parts": [{"text": _PING}]}],
            "generationConfig": {"maxOutputTokens": 1},
        }
        return Asked(f"/v1beta/models/{model}:generateContent", "", counted=True), body
    if kind is ModelApi.OPENAI:  # which takes no fewer
        return Asked("/v1/responses", "", counted=True), {"model": model, "input": _PING, "max_output_tokens": 16}
    path = "/v1/messages" if kind is ModelApi.ANTHROPIC else "/v1/chat/completions"
    return Asked(path, "", counted=True), {"model": model, "messages": message, "max_tokens": 1}


async def _beginning(response: httpx.Response) -> bytes:
    said = b""
    async for chunk in response.aiter_bytes():
        said += chunk
        if len(said) >= _MOST:
            break
    return said[:_MOST]


def _judged(status: int, said: bytes, model: str | None) -> tuple[bool, str]:
    words = _words(said)
    if 200 <= status < 300:
        if said.lstrip()[:1] not in (b"{", b"["):
            return False, "What is there answers, but not in JSON: look whether the address is that of the API."
        return True, f"The model {model} answered." if model else "The provider takes the key and lists its models."
    what = f"such {'model or ' if model else ''}address"
    for statuses, sentence in (
        ((401, 403), "The provider does not accept the key"),
        ((404,), f"The provider knows no {what}"),
        ((402, 429), "The provider takes the key, but no requests at the moment"),
        (range(300, 400), "The provider's address leads elsewhere, and is not followed"),
    ):
        if status in statuses:
            return False, f"{sentence} ({status}). {words}".strip()
    return False, f"The provider answered with an error ({status}). {words}".strip()


def _words(said: bytes) -> str:
    """Its own sentence, if it has one."""
    try:
        told: Any = json.loads(said)
        told = told[0] if isinstance(told, list) and told else told
        error = told.get("error", told) if isinstance(told, dict) else told
        words = error.get("message", "") if isinstance(error, dict) else error
    except (ValueError, RecursionError):
        words = said.decode(errors="replace")
    text = " ".join(str(words).split())
    return f"It said: {text[:_SHOWN]}" if text else ""
