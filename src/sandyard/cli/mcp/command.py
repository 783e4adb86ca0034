"""`sandyard mcp`: show how to connect other agents, and serve as a bridge for agents that only support standard input and output."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from sandyard.cli import config
from sandyard.cli.connection import connect
from sandyard.cli.errors import CommandError
from sandyard.cli.output import echo, output_option, print_json, wants_json

PLACEHOLDER = "sy_…"


@click.command()
@click.option("--stdio", is_flag=True, help="Serve the protocol on standard input and output. Started by agents.")
@click.option("--with-token", is_flag=True, help="Include this login's token in the configuration.")
@output_option
def mcp(stdio: bool, with_token: bool, output: str | None) -> None:
    """Show how other agents can use this server through the Model Context Protocol (MCP).

    They get tools for tasks, sessions and sandboxes, with the permissions of the token's owner. An agent that supports HTTP needs the
    address and its own token (`sandyard api-key create NAME`). An agent that only starts programs can run `sandyard mcp --stdio`,
    which uses this machine's login.
    """
    login = config.load()
    if stdio:
        _run_bridge(login)
        return
    if with_token and login.token is None:
        raise CommandError("Not logged in. Run `sandyard login` first, or omit --with-token.")
    token = login.token.reveal() if with_token and login.token is not None else PLACEHOLDER
    url = f"{login.url}/mcp"
    if wants_json(output):
        print_json({"url": url, "http": make_http_config(url, token), "stdio": STDIO_CONFIG})
        return
    echo(
        f"{url}\n\nFor an agent that supports HTTP:\n{json.dumps(make_http_config(url, token), indent=2, ensure_ascii=False)}\n"
    )
    echo(f"For an agent that starts programs, with this machine's login:\n{json.dumps(STDIO_CONFIG, indent=2)}")
    if token == PLACEHOLDER:
        echo(f"\nTo create a token to use instead of {PLACEHOLDER}: `sandyard api-key create NAME`", err=True)
    if login.is_unencrypted:
        echo(f"Warning: the token will be sent unencrypted to {login.url}. Use https.", err=True)


def make_http_config(url: str, token: str) -> dict[str, Any]:
    return {
        "mcpServers": {
            "sandyard": {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {token}"}},
        }
    }


STDIO_CONFIG = {"mcpServers": {"sandyard": {"command": "sandyard", "args": ["mcp", "--stdio"]}}}


def _run_bridge(login: config.Login) -> None:
    if sys.stdin.isatty():
        raise CommandError("--stdio must be started by an agent: it reads the protocol from standard input.")
    with connect(login) as client:
        client.get("/me")  # reports errors clearly, before the agent waits for a response
    from sandyard.cli.mcp.bridge import serve  # noqa: PLC0415 - slow to load

    serve(f"{login.url}/mcp", "" if login.token is None else login.token.reveal())
