"""What a person is told of an operation that is over."""

from __future__ import annotations

from typing import Any

from sandyard.cli.output import as_json, echo, print_json, printable


def told(operation: Any, sentence: str, output: str | None) -> None:
    """A sentence for people, the operation itself for programs."""
    print_json(operation) if as_json(output) else echo(printable(sentence))


def short(commit: object) -> str:
    return str(commit or "")[:10]


def counted(number: int, noun: str) -> str:
    """`1 commit`, `3 commits`"""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
