"""The operations of a Kubernetes API server that the engine needs: list, watch and delete pods, check tokens, change a ConfigMap."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from sandyard.kit.errors import ForbiddenError, InvalidInputError, NotFoundError, SandyardError, UnreachableError

TOKEN, AUTHORITY, NAMESPACE = "token", "ca.crt", "namespace"
"""Files with the credentials of a service account, as Kubernetes itself names them."""
PAGE = 250
TIMEOUT_S = 15.0
WATCH_S = 30
"""How long one watch lasts. A server that is silent for longer does not answer."""
Json = Mapping[str, Any]


class ExpiredVersionError(SandyardError):
    """The server no longer has the changes since this version. List again."""


class ApiServer:
    """A client with the rights of one service account in one namespace. Call `close` at the end. All operations raise
    UnreachableError, ForbiddenError if the account lacks the right, and SandyardError if the server refuses."""

    def __init__(self, url: str, credentials: Path) -> None:
        """Raises InvalidInputError if a file in the folder `credentials` is missing or damaged. Blocks."""
        self._credentials = credentials
        self.namespace = _read(credentials / NAMESPACE)
        _read(credentials / TOKEN)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(cadata=_read(credentials / AUTHORITY))
        except ssl.SSLError as error:
            raise InvalidInputError(f"{credentials / AUTHORITY} is not a certificate: {error}.") from error
        self._client = httpx.AsyncClient(base_url=url, verify=context, timeout=TIMEOUT_S, trust_env=False)
        self._pods = f"/api/v1/namespaces/{self.namespace}/pods"

    async def close(self) -> None:
        await self._client.aclose()

    async def list_pods(self, selector: str) -> tuple[list[Json], str]:
        """Return the pods that have these labels, and the version from which `watch_pods` continues."""
        found: list[Json] = []
        query: dict[str, str | int] = {"labelSelector": selector, "limit": PAGE}
        while True:
            page = await self._call("GET", self._pods, params=query)
            found += page.get("items") or []
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return found, str(metadata.get("resourceVersion", ""))
            query["continue"] = metadata["continue"]

    async def watch_pods(self, selector: str, version: str) -> AsyncIterator[tuple[str, Json]]:
        """Yield the changes of pods since a version: `ADDED`, `MODIFIED`, `DELETED` or, for its version only, `BOOKMARK`, and the
        pod. Ends after WATCH_S seconds. Raises ExpiredVersionError."""
        query: dict[str, str | int] = {
            "labelSelector": selector,
            "resourceVersion": version,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": WATCH_S,
        }
        timeout = httpx.Timeout(TIMEOUT_S, read=WATCH_S + TIMEOUT_S)
        try:
            async with self._client.stream(
                "GET", self._pods, params=query, headers=self._authorize(), timeout=timeout
            ) as response:
                if not response.is_success:
                    await response.aread()
                    raise _describe_refusal(response)
                async for line in response.aiter_lines():
                    if not line:
                        continue
                    event = _parse(line)
                    kind, subject = str(event.get("type")), event.get("object") or {}
                    if kind == "ERROR":
                        raise _make_error(int(subject.get("code") or 500), str(subject.get("message")))
                    yield kind, subject
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise self._describe_failure(error) from error

    async def delete_pod(self, name: str, uid: str) -> None:
        """Delete the pod with this name, if it is still the one with this uid. Idempotent."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        try:
            await self._call("DELETE", f"{self._pods}/{name}", json=body)
        except NotFoundError:
            pass
        except _ConflictingVersionError:
            pass

    async def review_token(self, token: str, audience: str) -> Json | None:
        """Return the user that a token for this audience belongs to, or None if it is not valid now."""
        body = {
            "kind": "TokenReview",
            "apiVersion": "authentication.k8s.io/v1",
            "spec": {"token": token, "audiences": [audience]},
        }
        answer = await self._call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", json=body)
        status = answer.get("status") or {}
        # a server that does not know audiences leaves them out, and has not checked them
        if status.get("authenticated") is not True or audience not in (status.get("audiences") or []):
            return None
        user = status.get("user")
        return user if isinstance(user, dict) else None

    async def set_config_map(self, name: str, data: Mapping[str, str]) -> None:
        """Set keys of an existing ConfigMap."""
        await self._call(
            "PATCH",
            f"/api/v1/namespaces/{self.namespace}/configmaps/{name}",
            content=json.dumps({"data": dict(data)}),
            headers={"Content-Type": "application/merge-patch+json"},
        )

    async def _call(self, method: str, path: str, **options: Any) -> Json:
        headers = {**self._authorize(), **options.pop("headers", {})}
        try:
            response = await self._client.request(method, path, headers=headers, **options)
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise self._describe_failure(error) from error
        if not response.is_success:
            raise _describe_refusal(response)
        return _parse(response.text)

    def _authorize(self) -> dict[str, str]:
        # read every time: Kubernetes replaces the file before the token expires
        return {"Authorization": f"Bearer {_read(self._credentials / TOKEN)}", "Accept": "application/json"}

    def _describe_failure(self, error: Exception) -> UnreachableError:
        return UnreachableError(f"{self._client.base_url} does not respond: {error or type(error).__name__}.")


class _ConflictingVersionError(SandyardError):
    """Somebody else has changed the object."""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidInputError(
            f"Could not read {path}: {reason}. The folder needs the files {TOKEN}, {AUTHORITY} and {NAMESPACE} of a service account."
        ) from error


def _parse(text: str) -> Json:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise UnreachableError("The API server has sent something that is not an object. Check its address.")
    return answer


def _describe_refusal(response: httpx.Response) -> SandyardError:
    try:
        message = str(json.loads(response.text)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = f"status {response.status_code}"
    return _make_error(response.status_code, message)


def _make_error(status: int, message: str) -> SandyardError:
    message = f"The API server refuses: {message[:1000].rstrip('.')}."
    if status == 410:
        return ExpiredVersionError(message)
    if status == 409:
        return _ConflictingVersionError(message)
    if status == 404:
        return NotFoundError(message)
    if status in (401, 403):
        return ForbiddenError(message)
    return UnreachableError(message) if status >= 500 or status == 429 else SandyardError(message)
