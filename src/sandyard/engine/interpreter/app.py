"""The interpreter's HTTP API: routes requests to contexts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandyard.engine.interpreter import http, outputs, specs
from sandyard.engine.interpreter.context import Context
from sandyard.engine.interpreter.contexts import BadDirectoryError, Contexts, FullError, NoContextError
from sandyard.engine.interpreter.http import BadRequestError, JsonLines, Request, Response
from sandyard.engine.interpreter.kernel import KernelError
from sandyard.engine.interpreter.processes import ForkServer

PORT = 49999
CONNECTIONS_FOLDER = Path("/run/interpreter")
HOST = "127.0.0.1"  # the engine connects through the loopback interface; nothing else needs access


class App:
    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self.ready = False

    async def handle(self, request: Request) -> Response | JsonLines:
        try:
            return await self._route(request)
        except NoContextError as error:
            raise BadRequestError(str(error), 404) from error
        except FullError as error:
            raise BadRequestError(str(error), 429) from error
        except specs.UnknownLanguageError as error:
            raise BadRequestError(str(error), language=error.language) from error
        except BadDirectoryError as error:
            raise BadRequestError(str(error)) from error
        except KernelError as error:
            raise BadRequestError(str(error), 500) from error

    async def _route(self, request: Request) -> Response | JsonLines:
        match (request.method, *request.path.strip("/").split("/")):
            case ("OPTIONS", *_):
                return Response(204)
            case ("GET", "health"):
                return Response(200, "OK") if self.ready else Response(503, "The interpreter is starting.", text=True)
            case ("POST", "execute"):
                return self._execute(request)
            case (method, "contexts", *rest):
                return Response(200, await self._handle_contexts(method, rest, request))
            case _:
                raise _make_not_found_error(request)

    async def _handle_contexts(self, method: str, rest: list[str], request: Request) -> Any:
        match (method, *rest):
            case ("GET",):
                return [context.description for context in self._contexts.list()]
            case ("POST",):
                body = request.parse_json()
                return (await self._contexts.create(_get_text(body, "language"), _get_text(body, "cwd"))).description
            case ("DELETE", context_id):
                self._contexts.remove(context_id)
            case ("POST", context_id, "restart"):
                await self._contexts.get(context_id).restart()
            case _:
                raise _make_not_found_error(request)
        return None

    def _execute(self, request: Request) -> JsonLines:
        body = request.parse_json()
        code, context_id, language = _get_text(body, "code"), _get_text(body, "context_id"), _get_text(body, "language")
        if code is None:
            raise BadRequestError("code is missing.")
        if context_id and language:
            raise BadRequestError("Only one of context_id or language can be provided")
        context = self._contexts.get(context_id) if context_id else self._contexts.get_default(language or "")
        return _stream_events(context, code, _get_variables(body))


def _make_not_found_error(request: Request) -> BadRequestError:
    return BadRequestError(f"{request.method} {request.path} not found.", 404)


async def _stream_events(context: Context, code: str, variables: Mapping[str, str]) -> JsonLines:
    try:
        async with contextlib.aclosing(context.execute(code, variables)) as events:
            async for event in events:
                yield event
        yield outputs.END
    except KernelError as error:
        raise BadRequestError(str(error), 500) from error


def _get_text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    raise BadRequestError(f"{name} must be a string.")


def _get_variables(body: Mapping[str, Any]) -> dict[str, str]:
    value = body.get("env_vars") or {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise BadRequestError("env_vars must be an object with string values.")
    if any(not name or "=" in name or "\0" in name + item for name, item in value.items()):
        raise BadRequestError("env_vars contains a name or a value that is not valid in an environment.")
    return value


def prepare_folder() -> None:
    """Create an empty private folder for the connections to kernels."""
    CONNECTIONS_FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    for leftover in CONNECTIONS_FOLDER.iterdir():
        leftover.unlink()
    os.umask(0o022)


async def serve(folder: Path) -> None:
    """Serve until this process ends. `folder` contains the fork server's program."""
    contexts = Contexts(CONNECTIONS_FOLDER, ForkServer(folder))
    app = App(contexts)
    server = await asyncio.start_server(
        lambda reader, writer: http.handle_connection(reader, writer, app.handle), HOST, PORT, limit=http.MAX_HEAD
    )
    await contexts.open()
    app.ready = True
    async with server:
        await server.serve_forever()
