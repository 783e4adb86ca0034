"""`sandyard login`, `logout` and `password`."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from typing import Any

import click

from sandyard.cli import config
from sandyard.cli.connection import connect, quote_segment
from sandyard.cli.errors import ApiError, CommandError, NotLoggedInError
from sandyard.cli.output import echo, escape
from sandyard.kit.errors import SandyardError
from sandyard.kit.secret import Secret


@click.command()
@click.argument("url", required=False)
@click.option("--token", help="Token to log in with; `-` reads it from standard input. Prompts if omitted.")
@click.option(
    "--name", help="Log in as this user with a password and create a token. Reads `SANDYARD_PASSWORD` or prompts."
)
def login(url: str | None, token: str | None, name: str | None) -> None:
    """Log in to the server at URL (default: this machine) and remember it.

    The address and token are stored in ~/.config/sandyard/config.json, readable only by you. SANDYARD_URL and SANDYARD_TOKEN
    override what is stored.
    """
    if token is not None and name is not None:
        raise click.UsageError("Use either --token or --name, not both.")
    server = config.Login(config.validate_url(url) if url else config.load().url)
    if server.is_unencrypted:
        echo(f"Warning: the token will be sent unencrypted to {server.url}. Use https.", err=True)
    new_login = _login_by_password(server, name) if name is not None else _login_by_token(server, token)
    with connect(new_login) as client:
        me = _format_user(client.get("/me"))
    file = config.save(new_login)
    echo(f"Logged in to {new_login.url} as {escape(me)}. Saved to {file}.")
    if os.environ.get("SANDYARD_TOKEN") or os.environ.get("SANDYARD_URL"):
        echo("SANDYARD_URL or SANDYARD_TOKEN is set and overrides the saved login.", err=True)


@click.command()
def logout() -> None:
    """Log out. Revokes the token if `login --name` created it; other tokens stay valid."""
    stored = config.delete_token()
    if stored.token is None:
        echo("Not logged in.")
        return
    if stored.token_id is not None:
        try:
            with connect(stored, timeout=10) as client:
                client.delete(f"/tokens/{quote_segment(stored.token_id)}")
        except ApiError as error:
            if error.http_status not in {401, 404}:  # already revoked
                _warn_still_valid(stored, error)
        except SandyardError as error:
            _warn_still_valid(stored, error)
    echo(f"Logged out of {stored.url}.")


@click.command()
@click.option(
    "--stdin",
    "from_stdin",
    is_flag=True,
    help="Read the current and the new password from standard input, one per line.",
)
def password(from_stdin: bool) -> None:
    """Change your password. Signs you out in all browsers; API tokens stay valid.

    With --stdin, leave the first line empty if no password is set yet.
    """
    with connect() as client:
        has_password = client.get("/me")["hasPassword"]
        if from_stdin:
            current, new = (sys.stdin.readline().rstrip("\r\n") for _ in range(2))
        else:
            current = click.prompt("Current password", hide_input=True, err=True) if has_password else ""
            new = click.prompt("New password", hide_input=True, confirmation_prompt="Confirm password", err=True)
        client.request("PUT", "/me/password", body={"currentPassword": current or None, "password": new})
    echo("Password changed.", err=True)


def _login_by_token(server: config.Login, token: str | None) -> config.Login:
    if token == "-":  # noqa: S105 - it means standard input
        token = sys.stdin.readline()
    elif token is None:
        token = _prompt_token(server)
    if not (token := token.strip()):
        _check_server(server)
        raise CommandError(
            "The token is empty. `sandyard up` printed one on its first start; `sandyard api-key create` creates more."
        )
    if not token.isascii() or not token.isprintable():
        raise CommandError("This is not a token: it contains invalid characters.")
    return config.Login(server.url, Secret(token))


def _prompt_token(server: config.Login) -> str:
    """Prompt for a token after checking that the server responds. Without a terminal, read the first line of standard input."""
    if not sys.stdin.isatty():
        return sys.stdin.readline()
    _check_server(server)
    return str(click.prompt("Token", hide_input=True, err=True))


def _check_server(server: config.Login) -> None:
    """Raise NoResponseError if the server does not respond or is not Sandyard's platform."""
    with connect(server) as client, contextlib.suppress(ApiError, NotLoggedInError):
        client.get("/me")


def _login_by_password(server: config.Login, name: str) -> config.Login:
    """Log in with a password, create a token, log out again and keep only the token."""
    password = os.environ.get("SANDYARD_PASSWORD") or click.prompt("Password", hide_input=True, err=True)
    with connect(server) as client:
        session = client.request("POST", "/login", body={"name": name, "password": password})
        headers = {"X-Sandyard-CSRF": session["key"]}
        label = f"sandyard login on {platform.node() or 'a machine'}"
        token = client.request("POST", "/tokens", body={"name": label}, headers=headers)
        with contextlib.suppress(SandyardError):
            client.request("POST", "/logout", headers=headers)
    return config.Login(server.url, Secret(token["value"]), token["id"])


def _format_user(response: Any) -> str:
    user = response.get("user") or response
    return f"{user.get('name') or user.get('id')} ({user.get('role')})"


def _warn_still_valid(stored: config.Login, error: SandyardError) -> None:
    echo(f"Could not revoke the token {stored.token_id}, so it stays valid: {error.message}", err=True)
