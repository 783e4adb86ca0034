"""Error responses as application/problem+json: a code for programs, a sentence for people, and the request id."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketState

from sandyard.kit.errors import SandyardError
from sandyard.platform.api.validation_messages import make_message

MEDIA_TYPE = "application/problem+json"
INTERNAL_ERROR = "Internal error. See the platform's log for this request id, and try again or report it."
MAX_ERRORS, _MAX_FIELD_LENGTH = 20, 300
"""Limits of a validation error: how many errors are listed, and the length of a field's path."""
_RETRY_AFTER = {503: 1.0}
_CODES = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    421: "wrong_host",
    429: "rate_limited",
    500: "internal",
}


class FieldError(BaseModel):
    field: str = Field(examples=["limit"])
    message: str = Field(examples=["Must be at most 200"])


class ConflictedFile(BaseModel):
    path: str = Field(examples=["src/login.py"])
    kind: str = Field(
        examples=["content"],
        description="The kind of conflict, as Git names it: content, add/add, modify/delete and so on.",
    )
    detail: str


class Problem(BaseModel):
    """An error (RFC 9457). `code` is for programs, `detail` for people."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:sandyard:problem:not_found",
                    "title": "Not Found",
                    "status": 404,
                    "code": "not_found",
                    "detail": "There is no project prj_0mh3k7a1x2abcdefghij.",
                    "requestId": "req_5v0c9k2m8d1x7q4z3b6n",
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    code: str
    detail: str
    requestId: str | None  # noqa: N815 - the wire's own name
    errors: list[FieldError] | None = Field(default=None, description="For invalid requests: the first 20 errors.")
    operationId: str | None = Field(  # noqa: N815
        default=None,
        description="For Git operations: the operation that failed.",
        examples=["gop_00mwhnkzc0a1b2c3d4e5"],
    )
    files: list[ConflictedFile] | None = Field(default=None, description="For `conflicts`: the files in conflict.")
    choices: list[str] | None = Field(
        default=None,
        description="For `conflicts`: possible values of `how` in POST /git/update.",
        examples=[["agent", "give_up"]],
    )
    suggestion: str | None = Field(
        default=None,
        description="For `commit_message`: an acceptable message.",
        examples=["fix: the login works again"],
    )


class TooManyRequestsError(SandyardError):
    """Too many requests. Try again in a moment."""

    code, status = "rate_limited", 429

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def make_problem(
    connection: HTTPConnection,
    status: int,
    code: str,
    detail: str,
    *,
    errors: Sequence[Mapping[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
) -> Response:
    """Build an error response. Stores `code` in the connection's state for the audit log. `extra` are members of specific errors."""
    connection.state.problem_code = code
    body: dict[str, Any] = {
        **(extra or {}),
        "type": f"urn:sandyard:problem:{code}",
        "title": _get_title(status),
        "status": status,
        "code": code,
        "detail": detail,
        "requestId": getattr(connection.state, "request_id", None),
    }
    if errors is not None:
        body["errors"] = list(errors)
    response_headers = dict(headers or {})
    if status == 401:
        response_headers["WWW-Authenticate"] = 'Bearer realm="sandyard"'
    if status in _RETRY_AFTER and "Retry-After" not in response_headers:
        response_headers["Retry-After"] = str(math.ceil(_RETRY_AFTER[status]))
    # the detail may quote the client's input: escape invalid text instead of failing on it
    text = json.dumps(body, ensure_ascii=False).encode(errors="backslashreplace")
    return Response(text, status, response_headers, media_type=MEDIA_TYPE)


def translate_error(connection: HTTPConnection, error: SandyardError) -> Response:
    wait = getattr(error, "retry_after", None)
    headers = {"Retry-After": str(max(1, math.ceil(wait)))} if wait is not None else None
    return make_problem(connection, error.status, error.code, error.message, headers=headers, extra=error.extra)


def install(app: FastAPI) -> None:
    """Install one handler per kind of error, for requests and WebSockets."""

    async def handle_sandyard_error(connection: Any, error: SandyardError) -> Response | None:
        return await _respond(connection, translate_error(connection, error), error.message)

    async def handle_invalid_request(connection: Any, error: Any) -> Response | None:
        found = error.errors()
        field_errors = [_make_field_error(entry) for entry in found[:MAX_ERRORS]]
        detail = "The request is invalid: " + "; ".join(f"{f['field']}: {f['message']}" for f in field_errors[:3]) + "."
        if len(found) > MAX_ERRORS:
            detail += f" There are {len(found) - MAX_ERRORS:,} more errors."
        return await _respond(
            connection, make_problem(connection, 400, "invalid_argument", detail, errors=field_errors), detail
        )

    async def handle_http_error(connection: Any, error: HTTPException) -> Response | None:
        detail = _make_detail(connection, error)
        code = _CODES.get(error.status_code, "error")
        response = make_problem(connection, error.status_code, code, detail, headers=error.headers)
        return await _respond(connection, response, detail)

    handlers: dict[type[Exception], Any] = {
        SandyardError: handle_sandyard_error,
        RequestValidationError: handle_invalid_request,
        WebSocketRequestValidationError: handle_invalid_request,
        HTTPException: handle_http_error,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


async def _respond(connection: HTTPConnection, response: Response, detail: str) -> Response | None:
    """Deny a WebSocket that is not yet open with the response; close an open one with 4000 + status."""
    if not isinstance(connection, WebSocket):
        return response
    if connection.application_state is WebSocketState.CONNECTING:
        if "websocket.http.response" in connection.scope.get("extensions", {}):
            await connection.send_denial_response(response)
        else:
            await connection.close(1008, detail[:100])
    elif connection.application_state is WebSocketState.CONNECTED:
        await connection.close(4000 + response.status_code, detail.encode()[:120].decode(errors="ignore"))
    return None


def _make_field_error(error: Mapping[str, Any]) -> dict[str, str]:
    if error["type"] == "json_invalid":
        return {"field": "body", "message": "is not valid JSON"}
    location = [str(part) for part in error["loc"]]
    if len(location) > 1 and location[0] in ("body", "query", "path", "header", "cookie"):
        location = location[1:]
    return {"field": ".".join(location)[:_MAX_FIELD_LENGTH] or "body", "message": make_message(error)}


def _make_detail(connection: HTTPConnection, error: HTTPException) -> str:
    path, method = connection.scope["path"], connection.scope.get("method", "WebSocket")
    if error.status_code == 404 and error.detail == "Not Found":
        return f"{method} {path} does not exist."
    if error.status_code == 405:
        return f"{path} does not support {method}."
    return str(error.detail)


def _get_title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
