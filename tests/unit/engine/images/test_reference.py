from __future__ import annotations

import pytest

from sandyard.engine.images.reference import Local, Remote, parse
from sandyard.kit.errors import InvalidInputError

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag", "digest"),
    [
        ("python", "registry-1.docker.io", "library/python", "latest", None),
        ("python:3.12", "registry-1.docker.io", "library/python", "3.12", None),
        ("docker.io/python:3.12", "registry-1.docker.io", "library/python", "3.12", None),
        ("index.docker.io/oven/bun", "registry-1.docker.io", "oven/bun", "latest", None),
        ("docker://oven/bun:1", "registry-1.docker.io", "oven/bun", "1", None),
        ("ghcr.io/x/y:tag", "ghcr.io", "x/y", "tag", None),
        ("localhost/x", "localhost", "x", "latest", None),
        (f"localhost:5000/x@{DIGEST}", "localhost:5000", "x", "latest", DIGEST),
        (f"localhost:5000/a/b:1@{DIGEST}", "localhost:5000", "a/b", "1", DIGEST),
        ("[::1]:5000/x:1", "[::1]:5000", "x", "1", None),
        (
            "123.dkr.ecr.eu-west-1.amazonaws.com/a__b/c-d.e:V1_2",
            "123.dkr.ecr.eu-west-1.amazonaws.com",
            "a__b/c-d.e",
            "V1_2",
            None,
        ),
    ],
)
def test_registry_references_are_parsed(text: str, host: str, repository: str, tag: str, digest: str | None) -> None:
    assert parse(text) == Remote(host, repository, tag, digest)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oci:/a/b", Local("oci", "/a/b", None)),
        ("oci:/a/b:1.0", Local("oci", "/a/b", "1.0")),
        ("oci-archive:/a.tar:x", Local("oci-archive", "/a.tar", "x")),
        ("docker-archive:/a.tar:x/y:1", Local("docker-archive", "/a.tar", "x/y:1")),
    ],
)
def test_local_references_are_parsed(text: str, expected: Local) -> None:
    assert parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a b",
        "Python",
        "a//b",
        "a/../b",
        "-a",
        "a:",
        "a@sha256:1",
        "a:b:c",
        "http://x/y",
        "x\ny",
        "oci:relative",
        "oci:",
        "oci:/x:",
        "a" * 1001,
        "host.example/",
        "user@host/x",
        "[::1/x",
        "x/" + "a" * 300,
        "a:" + "b" * 129,
        "host:99999999/x",
    ],
)
def test_invalid_references_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"Use a name like|absolute path|64 hexadecimal"):
        parse(text)
