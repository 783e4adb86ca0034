"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def make_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Cells are Markdown; line breaks and bars in them are replaced."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(_escape(cell) for cell in line)} |\n" for line in lines)


def _escape(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")
