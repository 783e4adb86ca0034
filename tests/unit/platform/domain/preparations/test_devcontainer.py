"""Reading a devcontainer.json: settings that are used, and those that are reported as ignored."""

from __future__ import annotations

import time

import pytest

from sandyard.platform.domain.preparations import devcontainer, jsonc


def test_json_with_comments_and_commas() -> None:
    text = """\ufeff// a comment, with "quotes"
    {
      "url": "https://example.org/* no comment */", /* one
      of two lines */ "list": [1, 2, /* last */ 3 , // done
      ],
      "escaped": "a\\"//b,]",
    }"""
    assert jsonc.parse(text) == {
        "url": "https://example.org/* no comment */",
        "list": [1, 2, 3],
        "escaped": 'a"//b,]',
    }
    for wrong in ("{", '{"a": "b}', "[1,,2]", "/* no end", "[" * 100_000):
        with pytest.raises(ValueError, match=r"."):
            jsonc.parse(wrong)


@pytest.mark.parametrize("piece", ["/*", "//", "/* */ ", ",", '"\\', ", /**/ "])
def test_hostile_text_takes_linear_time(piece: str) -> None:
    begun = time.process_time()
    with pytest.raises(ValueError, match=r"."):
        jsonc.parse(piece * (1_000_000 // len(piece)))
    assert time.process_time() - begun < 3


def test_reads_commands_and_variables_and_reports_ignored() -> None:
    found = devcontainer.parse(
        ".devcontainer.json",
        """{
          "image": "mcr.example/python:3", "features": {"ghcr.io/x/node:1": {}}, "remoteUser": "vscode",
          "onCreateCommand": "echo one",
          "postCreateCommand": {"b": ["npm", "ci", "a b"], "a": "ls ${containerWorkspaceFolder}"},
          "updateContentCommand": 5,
          "containerEnv": {"A": "1", "B": "${localEnv:HOME}", "C D": "x"}, "remoteEnv": {"A": "2", "P": "${containerWorkspaceFolder}/x"},
        }""",
        "base",
    )
    assert [(command.source, command.command) for command in found.commands] == [
        (".devcontainer.json: onCreateCommand", "echo one"),
        (".devcontainer.json: postCreateCommand.b", "npm ci 'a b'"),
        (".devcontainer.json: postCreateCommand.a", "ls /home/user/workspace"),
    ]
    assert found.envs == {"A": "2", "P": "/home/user/workspace/x"}
    warnings = "\n".join(found.warnings)
    for word in ("mcr.example/python:3", "'base'", "ghcr.io/x/node:1", "remoteUser", "updateContentCommand", "B, C D"):
        assert word in warnings, (word, warnings)
    assert devcontainer.parse("d", '{"image": "base"}', "base").warnings == ()
    assert "ignored" in devcontainer.parse("d", "[]", "base").warnings[0]
    assert "ignored" in devcontainer.parse("d", "{", "base").warnings[0]
