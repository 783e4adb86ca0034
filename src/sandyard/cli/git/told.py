"""Print the result of an operation."""

from __future__ import annotations

from typing import Any

from sandyard.cli.output import as_json, echo, print_json, printable


def told(operation: Any, sentence: str, output: str | None) -> None:
    """Print a sentence for people, or the operation as JSON for programs."""
    print_json(operation) if as_json(output) else echo(printable(sentence))


def short(commit: object) -> str:
    return str(commit or "")[:10]


def counted(number: int, noun: str) -> str:
    """Return `1 commit` or `3 commits`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
