"""`sandyard project mcp`: MCP servers for a project's agents."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.connection import connect, get_project_id, quote_segment
from sandyard.cli.errors import FAILED, ApiError, CommandError
from sandyard.cli.options import env_option
from sandyard.cli.output import echo, escape, output_option, print_json, show_list, show_one, wants_json
from sandyard.cli.projects.connection_test import TEST_FAILED, print_findings
from sandyard.cli.projects.members import project_argument

if TYPE_CHECKING:
    from sandyard.cli.client import Client

COLUMNS = {"NAME": "name", "TYPE": "type", "COMMAND/URL": "where", "HEADERS": "shown", "VARIABLES": "variables"}
FIELDS = {
    "id": "id",
    "name": "name",
    "type": "type",
    "command": "command",
    "args": "args",
    "variables": "variables",
    "url": "url",
    "headers": "shown",
    "created": "createdAt",
}
MAX_STDIN_CHARACTERS = 64 * 1024
server_argument = click.argument("server", metavar="SERVER")


@click.group()
def mcp() -> None:
    """Manage MCP servers for a project's agents.

    A server is a command in the sandbox, or a URL whose credentials stay on the platform. SERVER is a name or an id.
    """


@mcp.command("list")
@project_argument
@output_option
def list_servers(project: str, output: str | None) -> None:
    """List MCP servers, oldest first. Header values are never shown."""
    with connect() as client:
        found = client.get(_get_servers_path(client, project))
    if wants_json(output):
        print_json(found)
        return
    rows = [_to_row(server) for server in found["items"]]
    show_list(
        {"items": rows},
        COLUMNS,
        output,
        empty_message="No MCP servers. To add one: sandyard project mcp add PROJECT NAME",
    )


@mcp.command()
@project_argument
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", help="URL of a streamable HTTP server, instead of a COMMAND.")
@click.option("--header", "headers", multiple=True, metavar="NAME", help="Header; prompts for its value. Repeatable.")
@click.option("--headers-stdin", is_flag=True, help="Read headers from standard input, one `Name: value` per line.")
@env_option
@click.option(
    "--replace",
    is_flag=True,
    help="Update the server with this name if it exists. Without headers, existing headers are kept; without -e, variables are removed.",
)
@click.option(
    "--test/--no-test",
    default=True,
    show_default=True,
    help="Test the URL first and save nothing if it fails.",
)
@output_option
def add(
    *,
    project: str,
    name: str,
    command: tuple[str, ...],
    url: str | None,
    headers: tuple[str, ...],
    headers_stdin: bool,
    envs: dict[str, str],
    replace: bool,
    test: bool,
    output: str | None,
) -> None:
    """Add an MCP server for a project's agents.

    A COMMAND runs in the sandbox; write it after `--`. Its variables are not secret: everything in the sandbox can see them.

    \b
    sandyard project mcp add website notes -e LEVEL=info -- npx -y @example/notes@1.2.3
    sandyard project mcp add website issues --url https://mcp.example.org/mcp --header Authorization

    Header values are not passed as arguments, because other users on this machine could see them. They are stored on the platform, which
    adds them to requests. They never enter a sandbox.
    """
    if bool(command) == bool(url):
        raise click.UsageError("Give either a command after --, or --url.")
    if url is None and (headers or headers_stdin):
        raise click.UsageError("Use headers together with --url.")
    if url is not None and envs:
        raise click.UsageError("Use variables together with a command.")
    values = _read_headers(headers, from_stdin=headers_stdin)
    with connect() as client:
        path = _get_servers_path(client, project)
        existing = _find_server(client.get(path)["items"], name) if replace else None
        if existing is not None and (existing["url"] is None) != (url is None):
            raise CommandError(
                f"{existing['name']} is a server with a {'command' if existing['url'] is None else 'URL'}, which cannot be changed "
                f"to the other type. Remove it first: sandyard project mcp remove {project} {existing['name']}"
            )
        body: dict[str, Any] = {"command": command[0], "args": list(command[1:]), "env": envs} if command else {}
        if url is not None:
            kept_headers = (
                {} if values or existing is None else {header["name"]: None for header in existing["headers"]}
            )
            body = {"url": url, "headers": {**kept_headers, **values}, "test": test}
        try:
            if existing is None:
                saved = client.post(path, {"name": name, **body})
            else:
                saved = client.request("PATCH", f"{path}/{quote_segment(existing['id'])}", body=body)
        except ApiError as error:
            if error.problem_code != TEST_FAILED:
                raise
            print_findings(error.details, err=True)
            raise CommandError(
                f"{name} was not saved, because the test failed. To save it anyway, use --no-test."
            ) from None
    show_one(saved if wants_json(output) else _to_row(saved), FIELDS, output)


@mcp.command()
@project_argument
@server_argument
def remove(project: str, server: str) -> None:
    """Remove an MCP server from a project."""
    with connect() as client:
        path = _get_servers_path(client, project)
        client.delete(f"{path}/{quote_segment(_find_server_id(client, path, server))}")
    echo(f"Removed {server}.", err=True)


@mcp.command()
@project_argument
@server_argument
@output_option
def test(project: str, server: str, output: str | None) -> None:
    """Test an MCP server with a URL: list its tools, from the platform and with its headers. The exit code is 1 if that fails."""
    with connect() as client:
        path = _get_servers_path(client, project)
        found = client.post(f"{path}/{quote_segment(_find_server_id(client, path, server))}/test")
    if wants_json(output):
        print_json(found)
    else:
        mark = click.style("✓", fg="green") if found["ok"] else click.style("✗", fg="red")
        echo(f"{mark} {escape(found['detail'])}")
        for tool in found["tools"]:
            echo(f"  {escape(tool)}")
    sys.exit(0 if found["ok"] else FAILED)


def _get_servers_path(client: Client, project: str) -> str:
    return f"/projects/{quote_segment(get_project_id(client, project))}/mcp-servers"


def _find_server(items: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((server for server in items if name in (server["name"], server["id"])), None)


def _find_server_id(client: Client, path: str, name: str) -> str:
    found = _find_server(client.get(path)["items"], name)
    if found is None:
        raise ApiError(f"The project has no MCP server {name!r}.", 404)
    return str(found["id"])


def _read_headers(names: tuple[str, ...], *, from_stdin: bool) -> dict[str, str]:
    values = {}
    if from_stdin:
        for line in sys.stdin.read(MAX_STDIN_CHARACTERS).splitlines():
            name, colon, value = line.partition(":")
            if not colon or not name.strip() or not value.strip():
                raise CommandError("A line of standard input is not a header. Use the format `Name: value`.")
            values[name.strip()] = value.strip()
        if not values:
            raise CommandError("No headers on standard input: it is empty.")
    for name in names:
        values[name] = click.prompt(f"Value of {name}", hide_input=True, err=True).strip()
    return values


def _to_row(server: dict[str, Any]) -> dict[str, Any]:
    return {
        **server,
        "where": server["url"] or " ".join([server["command"], *server["args"]]),
        "shown": [f"{header['name']} {header['hint']}" for header in server["headers"]],
        "variables": sorted(server["env"]),
    }
