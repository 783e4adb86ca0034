"""Every request that the SDK's generated clients can make has a route."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import e2b
import pytest
from starlette.routing import Match

from sandyard.engine.e2b.control import api, volume_content
from sandyard.engine.e2b.control.guard import Guard

CLIENTS = [Path(e2b.__file__).parent / name for name in ("api/client/api", "volume/client/api")]


def read_client_requests() -> Iterator[tuple[str, str]]:
    """Yield method and path of each client module, with `x` in place of parameters."""
    for path in sorted(path for client in CLIENTS for path in client.glob("*/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                fields = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
                if {"method", "url"} <= fields.keys():
                    yield ast.literal_eval(fields["method"]).upper(), _format_path(fields["url"])


def _format_path(url: ast.expr) -> str:
    parts = url.values if isinstance(url, ast.JoinedStr) else [url]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)


REQUESTS = sorted(set(read_client_requests()))


def test_the_sdk_clients_were_parsed() -> None:
    assert len(REQUESTS) > 50
    assert {("POST", "/v2/sandboxes"), ("DELETE", "/sandboxes/x"), ("PUT", "/volumecontent/x/file")} <= set(REQUESTS)


@pytest.fixture(scope="module")
def guard() -> Guard:
    return api.build_app(MagicMock(), MagicMock())


def _walk_routes(app: Any) -> Iterator[Any]:
    """Yield all routes, including those of included routers, in matching order."""
    for route in app.routes:
        included = getattr(route, "original_router", None)
        yield from _walk_routes(included) if included is not None else [route]


@pytest.mark.parametrize("request_line", REQUESTS, ids=" ".join)
def test_every_sdk_request_has_a_route(guard: Guard, request_line: tuple[str, str]) -> None:
    if request_line in guard.direct_apps:
        return
    method, path = request_line
    scope = {"type": "http", "method": method, "path": path}
    app = volume_content.make_app(MagicMock()) if path.startswith(volume_content.PREFIX) else guard.app.app
    matches = [route.matches(scope) for route in _walk_routes(app)]
    names = next((child["path_params"] for match, child in matches if match is Match.FULL), None)
    assert names is not None, f"no route matches {method} {path}"
    assert set(names.values()) <= {"x"}, f"a fixed path segment was matched as a parameter: {names}"
