"""Every request that the SDK's generated clients can make has an answer of ours."""

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


def requests() -> Iterator[tuple[str, str]]:
    """Method and path of each module, with `x` where a name goes."""
    for path in sorted(path for client in CLIENTS for path in client.glob("*/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                found = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
                if {"method", "url"} <= found.keys():
                    yield ast.literal_eval(found["method"]).upper(), _path(found["url"])


def _path(url: ast.expr) -> str:
    parts = url.values if isinstance(url, ast.JoinedStr) else [url]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)


REQUESTS = sorted(set(requests()))


def test_the_clients_were_read() -> None:
    assert len(REQUESTS) > 50
    assert {("POST", "/v2/sandboxes"), ("DELETE", "/sandboxes/x"), ("PUT", "/volumecontent/x/file")} <= set(REQUESTS)


@pytest.fixture(scope="module")
def guard() -> Guard:
    return api.build(MagicMock(), MagicMock())


def _routes(app: Any) -> Iterator[Any]:
    """All of them, those of included routers too, in the order in which they are asked."""
    for route in app.routes:
        included = getattr(route, "original_router", None)
        yield from _routes(included) if included is not None else [route]


@pytest.mark.parametrize("wanted", REQUESTS, ids=" ".join)
def test_each_request_is_answered(guard: Guard, wanted: tuple[str, str]) -> None:
    if wanted in guard._direct:
        return
    method, path = wanted
    scope = {"type": "http", "method": method, "path": path}
    app = volume_content.app(MagicMock()) if path.startswith(volume_content.PREFIX) else guard._app
    matches = [route.matches(scope) for route in _routes(app)]
    names = next((found["path_params"] for match, found in matches if match is Match.FULL), None)
    assert names is not None, f"nothing answers {method} {path}"
    assert set(names.values()) <= {"x"}, f"more is taken for a name than is one: {names}"
