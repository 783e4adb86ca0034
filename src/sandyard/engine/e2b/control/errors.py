"""Error responses: every error is returned as `{"code": int, "message": str}`, with what happened and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from sandyard.kit.errors import SandyardError

FAILED = "The request failed because of an internal error; see the engine's log. Try again, or report it."
_RETRY_AFTER = {503: "1"}
_MESSAGES = {
    404: "{method} {path} not found. Check the address and the client's version.",
    405: "{path} does not support {method}.",
}


def make_error_response(status: int, message: str) -> JSONResponse:
    headers = {"Retry-After": _RETRY_AFTER[status]} if status in _RETRY_AFTER else None
    return JSONResponse({"code": status, "message": message}, status, headers)


def make_validation_response(errors: Sequence[Any]) -> JSONResponse:
    """Return the response to an invalid request body."""
    return make_error_response(400, f"Error when parsing request: {describe_validation_errors(errors)}")


def install(app: FastAPI) -> None:
    """Register a handler for each type of error."""

    @app.exception_handler(SandyardError)
    async def sandyard(request: Request, error: SandyardError) -> JSONResponse:
        return make_error_response(error.status, error.message)

    @app.exception_handler(RequestValidationError)
    async def validation(request: Request, error: RequestValidationError) -> JSONResponse:
        return make_validation_response(error.errors())

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        message = _MESSAGES.get(error.status_code, str(error.detail))
        return make_error_response(error.status_code, message.format(method=request.method, path=request.url.path))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return make_error_response(500, FAILED)  # Starlette raises the error again, and the guard logs it


def describe_validation_errors(errors: Sequence[Any]) -> str:
    """Describe what is wrong with a request in one line: the first few errors, each with its location."""
    problems = []
    for error in errors[:3]:
        if error["type"] == "json_invalid":
            return "the body is not valid JSON."
        location = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path", "header"))
        problems.append(f"{location or 'the body'}: {str(error['msg'])[0].lower()}{str(error['msg'])[1:]}")
    return "; ".join(problems) + "."
