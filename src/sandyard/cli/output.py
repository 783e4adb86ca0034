"""Command output: tables for people, the API's JSON for programs."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandyard.kit.hidden_characters import HIDDEN

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

F = TypeVar("F", bound=Callable[..., Any])
Json = Any

COLUMN_GAP, MAX_TABLE_WIDTH, UNLIMITED_WIDTH = 2, 1000, 1_000_000
SHORTEST_COLUMN = 12
"""The width down to which `fit_column` shortens a column."""
COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")
OWN_COLOURS = {f"\x1b[{number}m" for number in (0, 1, 2, *range(30, 38), *range(90, 98))}
"""Reset, bold, dim and the colours that click.style sets: none of them hides text."""
SPACES = re.compile(r"[^\S\x0b\x0c\x1c-\x1f\x85]+")
"""Whitespace without the control characters that Python counts as such."""
STATUS_STYLES = {
    "running": "green",
    "provisioning": "cyan",
    "starting": "cyan",
    "paused": "yellow",
    "error": "red",
    "lost": "red",
    "timed_out": "red",
    "killed": "yellow",
    "destroyed": "dim",
    "exited": "green",
    "queued": "yellow",
    "completed": "green",
    "failed": "red",
}


def output_option(function: F) -> F:
    """Add `-o json|table`. The default is a table on a terminal and JSON in a pipe."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        help="Output format.  [default: table on a terminal, otherwise json]",
    )(function)


def text_option(function: F) -> F:
    """Add `-o text|json`, for output that is also useful in a pipe. The default is text."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Output format.",
    )(function)


def wants_json(output: str | None) -> bool:
    return output == "json" or (output is None and not sys.stdout.isatty())


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text from any source. Control sequences are escaped, except for the colours that our own commands use."""
    if not _is_visible(text):
        text = "".join(
            part if part in OWN_COLOURS else "\n".join(escape_line(line) for line in part.split("\n"))
            for part in COLOURS.split(text)
        )
    click.echo(text, err=err, nl=nl)


def try_echo(text: str, *, err: bool = False) -> None:
    """Print a line of a server. Ignores failures, for example a full disk, so that the server keeps running."""
    with contextlib.suppress(OSError):
        echo(text, err=err)


def print_json(data: Json, *, compact: bool = False) -> None:
    import json  # noqa: PLC0415 - not needed for --help

    text = json.dumps(data, ensure_ascii=False, indent=None if compact else 2)
    if not text.isprintable():  # json only escapes ASCII control characters
        text = "".join(
            character if character.isprintable() or character in "\n\u00a0\u3000" else json.dumps(character)[1:-1]
            for character in text
        )
    click.echo(text)


def show_list(page: Json, columns: Mapping[str, str], output: str | None, *, empty_message: str) -> None:
    """Print a table or JSON. `columns` maps headings to fields, dotted for nested fields. Columns without any value are omitted.

    `empty_message` is printed if there are no items.
    """
    if wants_json(output):
        print_json(page)
        return
    items: Sequence[Json] = page["items"]
    if not items:
        echo(empty_message, err=True)
        return
    from rich.table import Table  # noqa: PLC0415 - slow to load

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, COLUMN_GAP, 0, 0))
    shown = {heading: field for heading, field in columns.items() if any(_get_field(item, field) for item in items)}
    for heading, field in shown.items():
        min_width = (
            max(len(str(_get_field(item, field) or "")) for item in items)
            if field.lower().endswith(("id", "url", "status"))
            else None
        )
        # truncated ids and URLs cannot be copied, and a status is short anyway
        table.add_column(heading, min_width=min_width, overflow="ellipsis", no_wrap=True)
    for item in items:
        table.add_row(*(_format_cell(field, _get_field(item, field)) for field in shown.values()))
    _print_table(table, len(shown))
    if page.get("nextCursor"):
        echo("There are more. Use --limit to see them.", err=True)


def show_one(item: Json, fields: Mapping[str, str], output: str | None) -> None:
    """Print one item, with a line for each field that has a value."""
    if wants_json(output):
        print_json(item)
        return
    from rich.table import Table  # noqa: PLC0415 - slow to load

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for heading, field in fields.items():
        if (value := _get_field(item, field)) not in (None, [], {}):
            table.add_row(heading, _format_cell(field, value))
    _print_table(table)


def _print_table(table: Table, columns: int = 0) -> None:
    """Print a table. `columns` is how many columns must keep their minimum width on a narrow terminal. In a pipe nothing is cut or
    wrapped."""
    screen = make_console()
    if not is_terminal():
        screen.width = UNLIMITED_WIDTH
        with screen.capture() as capture:
            screen.print(table)
        echo("\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n")))
        return
    if columns:
        needed = screen.measure(table, options=screen.options.update(max_width=MAX_TABLE_WIDTH)).minimum
        screen.width = max(screen.width, needed + COLUMN_GAP * columns)
    screen.print(table)


def fit_table(
    rows: list[Json], columns: dict[str, str], narrow_columns: dict[str, str], field: str
) -> tuple[dict[str, str], list[Json]]:
    """Return the columns that a narrow terminal has room for, and the rows with the values of a field shortened so that the others fit.
    In a pipe nothing is changed."""
    if not is_terminal():
        return columns, rows
    width = make_console().width
    if get_free_width(rows, columns, field, width) < SHORTEST_COLUMN:
        columns = narrow_columns
    return columns, fit_column(rows, columns, field, width)


def get_free_width(rows: Sequence[Json], columns: Mapping[str, str], field: str, width: int) -> int:
    """Return how wide the column of this field can be in a table of this width, so that the other columns fit."""
    taken = COLUMN_GAP
    for heading, other in columns.items():
        widths = [_format_cell(other, _get_field(row, other)).cell_len for row in rows]
        if other != field and any(widths):
            taken += max(len(heading), *widths) + COLUMN_GAP
    return width - taken


def fit_column(rows: Sequence[Json], columns: Mapping[str, str], field: str, width: int) -> list[Json]:
    """Shorten the values of a field so that the other columns fit."""
    free_width = max(SHORTEST_COLUMN, get_free_width(rows, columns, field, width))
    return [{**row, field: _shorten(_format_cell(field, row[field]).plain, free_width)} for row in rows]


def _shorten(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - slow to load

    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"


def make_console(*, err: bool = False) -> Console:
    from rich.console import Console  # noqa: PLC0415 - slow to load

    return Console(stderr=err, highlight=False, markup=False, emoji=False)


def escape(text: str) -> str:
    """Return `text` on one line, with escaped control characters and invisible characters."""
    return escape_line(SPACES.sub(" ", text).strip(" "))


def escape_line(line: str) -> str:
    """Return a line of untrusted text with escaped control characters and invisible characters."""
    if _is_visible(line):
        return line
    return "".join(
        character if character.isprintable() or character in "\t\u00a0\u3000" else _escape_character(character)
        for character in HIDDEN.sub(lambda match: _escape_character(match[0]), line)
    )


def has_hidden_characters(text: str) -> bool:
    """Return whether a text of several lines has control characters or invisible characters, other than tabs and line endings."""
    return any(not _is_visible(re.sub("[\t\u00a0\u3000]", " ", line.removesuffix("\r"))) for line in text.split("\n"))


def _is_visible(text: str) -> bool:
    return text.isprintable() and not HIDDEN.search(text)


def _escape_character(character: str) -> str:
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return f"^{chr(code ^ 0x40)}"  # like less and git: ^M, ^[
    return f"<U+{code:04X}>"


def is_terminal() -> bool:
    """Return whether standard output is a terminal. Only then text is cut to fit."""
    return sys.stdout.isatty()


def wants_colour() -> bool:
    """Return whether to use colours: on a terminal without NO_COLOR (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def format_age(timestamp: str, now: datetime | None = None) -> str:
    """Format an RFC 3339 time relative to now: `3 min ago`."""
    try:
        then = datetime.fromisoformat(timestamp)
    except ValueError:
        return escape(timestamp)
    seconds = int(((now or datetime.now(UTC)) - then.astimezone(UTC)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago" if seconds >= 2 else "now"


def _get_field(item: Json, field: str) -> Json:
    for name in field.split("."):
        item = item.get(name) if isinstance(item, dict) else None
    return item


def _format_cell(field: str, value: Json) -> Any:
    from rich.text import Text  # noqa: PLC0415 - slow to load

    if value is None:
        return Text("")
    if field.endswith("At") and isinstance(value, str):
        return Text(format_age(value))
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return Text(escape(", ".join(value)))
    if isinstance(value, (dict, list)):
        import json  # noqa: PLC0415 - not needed for --help

        return Text(escape(json.dumps(value, ensure_ascii=False)))
    text = f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else escape(str(value))
    return Text(text, style=STATUS_STYLES.get(text, "") if field.endswith("status") else "")


def pluralize(number: int, noun: str, plural: str | None = None) -> str:
    """Return `1 commit` or `3 commits`. `plural` defaults to the noun with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def format_size(size: float) -> str:
    """Format a number of bytes: `1.5 GiB`."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
