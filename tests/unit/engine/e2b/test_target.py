from __future__ import annotations

from typing import Any

import pytest

from sandyard.engine.e2b.dataplane.target import SignedFile, Target, find_target, parse_signed_file
from sandyard.kit.errors import InvalidInputError


def scope(path: str = "/", query: str = "", method: str = "GET", **headers: str) -> dict[str, Any]:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": raw}


@pytest.mark.parametrize(
    ("headers", "target"),
    [
        ({"host": "engine:3000"}, None),
        ({"host": "127.0.0.1:3000"}, None),
        ({}, None),
        ({"host": "3000-iabc"}, None),
        ({"host": "3000-iabc.example.com"}, Target("iabc", 3000)),
        ({"host": "3000-iabc.localhost:8080"}, Target("iabc", 3000)),
        ({"host": "49983-iabc-6532622b.e2b.app"}, Target("iabc", 49983)),
        ({"host": "1-2.example.com", "e2b_sandbox_id": "iabc", "e2b_sandbox_port": "80"}, Target("iabc", 80)),
        ({"e2b_sandbox_id": "iabc-6532622b"}, Target("iabc", 49983)),
        ({"e2b_sandbox_port": "80", "host": "engine"}, None),
    ],
)
def test_the_target_is_read_from_the_headers(headers: dict[str, str], target: Target | None) -> None:
    assert find_target(scope(**headers)) == target


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "", "99999999", "¹"])
def test_invalid_ports_are_rejected(port: str) -> None:
    with pytest.raises(InvalidInputError):
        find_target(scope(e2b_sandbox_id="iabc", e2b_sandbox_port=port))


def test_a_signed_url_is_parsed() -> None:
    query = "path=%2Fhome%2Fa%20b%2Bc&username=root&signature=v1_a%2Fb%2Bc&signature_expiration=17"
    file = SignedFile("/home/a b+c", "read", "root", "v1_a/b+c", "17")
    assert parse_signed_file(scope("/files", query)) == file
    assert parse_signed_file(scope("/files", "signature=x", "POST")) == SignedFile("", "write", "", "x", None)
    assert parse_signed_file(scope("/files", "path=x")) is None
    assert parse_signed_file(scope("/other", query)) is None
    assert parse_signed_file(scope("/files", query, "DELETE")) is None


@pytest.mark.parametrize("expires", ["soon", "-1", "", "1e9", "9" * 30])
def test_an_invalid_expiration_is_rejected(expires: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_signed_file(scope("/files", f"signature=x&signature_expiration={expires}"))
