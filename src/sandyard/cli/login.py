"""`sandyard login` and `logout`: which server, and as whom."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from typing import Any

import click

from sandyard.cli import config
from sandyard.cli.connection import connect, segment
from sandyard.cli.errors import ApiError, CommandError, NotLoggedInError
from sandyard.cli.output import echo, printable
from sandyard.kit.errors import SandyardError
from sandyard.kit.secret import Secret


@click.command()
@click.argument("url", required=False)
@click.option("--token", help="The token to log in with; `-` reads it from standard input. Asked for when not given.")
@click.option(
    "--name", help="Log in as this user, by password, and have a token made. `SANDYARD_PASSWORD`, or asked for."
)
def login(url: str | None, token: str | None, name: str | None) -> None:
    """Log in to the server at URL (this machine's, if none is given), and remember it.

    Address and token are stored in ~/.config/sandyard/config.json, readable by you only. SANDYARD_URL and SANDYARD_TOKEN
    win over what is stored.
    """
    if token is not None and name is not None:
        raise click.UsageError("Either --token or --name, not both.")
    where = config.Login(config.checked_url(url) if url else config.load().url)
    if where.bare:
        echo(f"Warning: the token will cross the network unencrypted to {where.url}. Use https.", err=True)
    made = _by_password(where, name) if name is not None else _by_token(where, token)
    with connect(made) as client:
        me = _me(client.get("/me"))
    file = config.save(made)
    echo(f"Logged in at {made.url} as {printable(me)}; stored in {file}.")
    if os.environ.get("SANDYARD_TOKEN") or os.environ.get("SANDYARD_URL"):
        echo("SANDYARD_URL or SANDYARD_TOKEN is set, and wins over what was stored just now.", err=True)


@click.command()
def logout() -> None:
    """Forget the login. A token that `login --name` had made is ended; others stay valid."""
    stored = config.forget()
    if stored.token is None:
        echo("Nobody was logged in.")
        return
    if stored.token_id is not None:
        try:
            with connect(stored, patience=10) as client:
                client.delete(f"/tokens/{segment(stored.token_id)}")
        except ApiError as error:
            if error.http_status not in {401, 404}:  # ended already
                _still_valid(stored, error)
        except SandyardError as error:
            _still_valid(stored, error)
    echo(f"Logged out of {stored.url}.")


@click.command()
@click.option(
    "--stdin", "from_stdin", is_flag=True, help="Read the current and the new one from standard input, a line each."
)
def password(from_stdin: bool) -> None:
    """Change your own password. All your logins in browsers end; API tokens stay valid.

    The first line of --stdin is empty while no password is set.
    """
    with connect() as client:
        has_one = client.get("/me")["hasPassword"]
        if from_stdin:
            current, new = (sys.stdin.readline().rstrip("\r\n") for _ in range(2))
        else:
            current = click.prompt("Current password", hide_input=True, err=True) if has_one else ""
            new = click.prompt("New password", hide_input=True, confirmation_prompt="Confirm password", err=True)
        client.request("PUT", "/me/password", body={"currentPassword": current or None, "password": new})
    echo("Password changed.", err=True)


def _by_token(where: config.Login, token: str | None) -> config.Login:
    if token == "-":  # noqa: S105 - it says where the token is
        token = sys.stdin.readline()
    elif token is None:
        token = _asked(where)
    if not (token := token.strip()):
        raise CommandError(
            "The token is empty. `sandyard up` said one when it started first; `sandyard api-key create` makes more."
        )
    if not token.isascii() or not token.isprintable():
        raise CommandError("That is not a token: it has characters that no token has.")
    return config.Login(where.url, Secret(token))


def _asked(where: config.Login) -> str:
    """Typed by a person, once it is known that somebody is there to take it; else the first line of standard input."""
    if not sys.stdin.isatty():
        return sys.stdin.readline()
    with connect(where) as client, contextlib.suppress(ApiError, NotLoggedInError):
        client.get("/me")
    return str(click.prompt("Token", hide_input=True, err=True))


def _by_password(where: config.Login, name: str) -> config.Login:
    """A browser's login for as long as it takes to have a token made, for which only the token is kept."""
    password = os.environ.get("SANDYARD_PASSWORD") or click.prompt("Password", hide_input=True, err=True)
    safe = {"X-Sandyard-CSRF": "1"}
    with connect(where) as client:
        client.request("POST", "/login", body={"name": name, "password": password}, headers=safe)
        label = f"sandyard login on {platform.node() or 'a machine'}"
        made = client.request("POST", "/tokens", body={"name": label}, headers=safe)
        with contextlib.suppress(SandyardError):
            client.request("POST", "/logout", headers=safe)
    return config.Login(where.url, Secret(made["value"]), made["id"])


def _me(answer: Any) -> str:
    user = answer.get("user") or answer
    return f"{user.get('name') or user.get('id')} ({user.get('role')})"


def _still_valid(stored: config.Login, error: SandyardError) -> None:
    echo(f"The token {stored.token_id} could not be ended and stays valid: {error.message}", err=True)
