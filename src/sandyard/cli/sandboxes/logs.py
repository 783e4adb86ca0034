"""`sandyard sandbox logs`: show the commands that ran in a sandbox and their output."""

from __future__ import annotations

import base64
import codecs
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.completion import complete_sandboxes
from sandyard.cli.connection import connect, get_sandbox_id, quote_segment
from sandyard.cli.options import limit_option
from sandyard.cli.output import COLOURS, echo, escape, escape_line, format_age, print_json

if TYPE_CHECKING:
    from sandyard.cli.client import Client

CHUNK = 256 * 1024
_LINE_END = re.compile(r"\r\n?|\n")
_INCOMPLETE = re.compile(r"(?:\x1b(?:\[[0-9;]{0,60})?|\r)\Z")
"""The end of a piece, if the rest of a colour sequence or line ending may follow in the next one."""


@click.command()
@click.argument("sandbox_id", metavar="SANDBOX", shell_complete=complete_sandboxes)
@click.option("--command", "command_id", metavar="CMD", help="Show the complete output of this command only.")
@limit_option(20)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)
def logs(sandbox_id: str, command_id: str | None, limit: int, output: str) -> None:
    """Show the latest commands and their output. Oldest first. Does not resume the sandbox.

    On a terminal, control sequences in the output are escaped, except for colours.

    With JSON output, prints the commands as the API lists them, newest first; `GET /commands/{id}/output` returns their output.
    """
    with connect() as client:
        if command_id is not None:
            found = client.get(f"/commands/{quote_segment(command_id)}")
            if output == "json":
                print_json(found)
            else:
                _write_output(client, found)
            return
        page = client.list_items(f"/sandboxes/{quote_segment(get_sandbox_id(client, sandbox_id))}/commands", limit)
        if output == "json":
            print_json(page)
            return
        for command in reversed(page["items"]):
            echo(click.style(format_header(command), bold=True))
            sys.stdout.flush()
            _write_output(client, command)


def format_header(command: Any) -> str:
    """Return, for example, `$ make test  (exited 0, 2.3 s, 5 min ago, cmd_…)`."""
    ended = command.get("status", "")
    if command.get("exitCode") is not None:
        ended += f" {command['exitCode']}"
    facts = [ended]
    if command.get("durationMs") is not None:
        facts.append(f"{command['durationMs'] / 1000:.1f} s")
    if command.get("startedAt"):
        facts.append(format_age(command["startedAt"]))
    facts.append(command["id"])
    return f"$ {escape(command.get('command') or '')}  ({', '.join(fact for fact in facts if fact)})"


def _write_output(client: Client, command: Any) -> None:
    for stream, target in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        last, escaper = b"", OutputEscaper() if target.isatty() else None
        for data in read_pages(client, command["id"], stream):
            target.buffer.write(data if escaper is None else escaper.escape(data))
            last = data
        if escaper is not None:
            target.buffer.write(escaper.finish())
        if last and not last.endswith(b"\n"):
            target.buffer.write(b"\n")
        target.buffer.flush()


class OutputEscaper:
    """Escapes everything in a program's output that would control a terminal, except for colours. Output comes in pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""
        self._coloured = False

    def escape(self, data: bytes, *, final: bool = False) -> bytes:
        text = self._pending + self._decoder.decode(data, final)
        incomplete = None if final else _INCOMPLETE.search(text)
        self._pending = "" if incomplete is None else incomplete[0]
        parts = COLOURS.split(_LINE_END.sub("\n", text.removesuffix(self._pending)))
        self._coloured |= len(parts) > 1
        return "".join(
            part if COLOURS.fullmatch(part) else "\n".join(escape_line(line) for line in part.split("\n"))
            for part in parts
        ).encode()

    def finish(self) -> bytes:
        """Return the rest of the output, and the sequence that resets the terminal's colours if there were any."""
        return self.escape(b"", final=True) + (b"\x1b[0m" if self._coloured else b"")


def read_pages(client: Client, command_id: str, stream: str) -> Iterator[bytes]:
    """Yield everything a command has written to one stream, a page at a time."""
    offset = 0
    while True:
        page = client.get(f"/commands/{quote_segment(command_id)}/output", stream=stream, offset=offset, limit=CHUNK)
        text = page.get("text")
        yield text.encode() if text is not None else base64.b64decode(page.get("base64") or "")
        if page["end"] <= offset or page["end"] >= page["total"]:
            return
        offset = page["end"]
