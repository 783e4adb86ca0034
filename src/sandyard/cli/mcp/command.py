"""`sandyard mcp`: how other agents get at the yard, and the bridge for those that only know standard input and output."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from sandyard.cli import config
from sandyard.cli.connection import connect
from sandyard.cli.errors import CommandError
from sandyard.cli.output import as_json, echo, output_option, print_json

PLACEHOLDER = "sy_…"


@click.command()
@click.option("--stdio", is_flag=True, help="Speak the protocol on standard input and output, for agents to start.")
@click.option("--with-token", is_flag=True, help="Put the token of this login into the configuration.")
@output_option
def mcp(stdio: bool, with_token: bool, output: str | None) -> None:
    """Show how other agents use this server through the Model Context Protocol (MCP).

    They get tools for tasks, sessions and sandboxes, and may do what the token's owner may do. An agent that speaks HTTP needs the
    address and a token of its own (`sandyard api-key create NAME`); one that only starts programs can start `sandyard mcp --stdio`,
    which uses the login of this machine.
    """
    login = config.load()
    if stdio:
        _bridge(login)
        return
    if with_token and login.token is None:
        raise CommandError("Nobody is logged in here: `sandyard login` first, or leave --with-token out.")
    token = login.token.reveal() if with_token and login.token is not None else PLACEHOLDER
    url = f"{login.url}/mcp"
    if as_json(output):
        print_json({"url": url, "http": by_http(url, token), "stdio": BY_PROGRAM})
        return
    echo(f"{url}\n\nFor an agent that speaks HTTP:\n{json.dumps(by_http(url, token), indent=2, ensure_ascii=False)}\n")
    echo(f"For one that starts programs, with the login of this machine:\n{json.dumps(BY_PROGRAM, indent=2)}")
    if token == PLACEHOLDER:
        echo(f"\n`sandyard api-key create NAME` makes a token to put in the place of {PLACEHOLDER}", err=True)
    if login.bare:
        echo(f"Warning: the token will cross the network unencrypted to {login.url}. Use https.", err=True)


def by_http(url: str, token: str) -> dict[str, Any]:
    return {
        "mcpServers": {
            "sandyard": {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {token}"}},
        }
    }


BY_PROGRAM = {"mcpServers": {"sandyard": {"command": "sandyard", "args": ["mcp", "--stdio"]}}}


def _bridge(login: config.Login) -> None:
    if sys.stdin.isatty():
        raise CommandError("--stdio is for agents: it reads the protocol from its standard input.")
    with connect(login) as client:
        client.get("/me")  # says what is wrong in our own words, and before the agent waits for an answer
    from sandyard.cli.mcp.bridge import serve  # noqa: PLC0415 - slow to load

    serve(f"{login.url}/mcp", "" if login.token is None else login.token.reveal())
