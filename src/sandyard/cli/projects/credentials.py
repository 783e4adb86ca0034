"""Credentials of a project's repository. They are read from a terminal, standard input or a file, never from the command line.

Every user of a machine can see the command line of a process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from sandyard.cli.errors import CommandError

F = TypeVar("F", bound=Callable[..., Any])
MAX_BYTES = 64 * 1024
KEY_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)


def credential_options(function: F) -> F:
    """Add the options of commands that accept credentials. `read_credentials` builds a request body from them."""
    for option in (
        click.option(
            "--webhook-secret-stdin", is_flag=True, help="Read the forge's webhook secret from standard input."
        ),
        click.option("--private-key", type=KEY_FILE, help="File with the GitHub App's private key."),
        click.option(
            "--installation-id", type=click.IntRange(1), help="Installation id of the GitHub App for this repository."
        ),
        click.option("--app-id", help="Use this GitHub App instead of a token."),
        click.option("--ssh-key", type=KEY_FILE, help="File with a private key for SSH access to the repository."),
        click.option("--username", help="Username for the token, if the remote needs one.  [default: x-access-token]"),
        click.option("--token-stdin", is_flag=True, help="Read the token from standard input."),
    ):
        function = option(function)
    return function


def read_credentials(
    *,
    repository: str | None,
    may_prompt: bool,
    token_stdin: bool,
    username: str | None,
    ssh_key: Path | None,
    app_id: str | None,
    installation_id: int | None,
    private_key: Path | None,
    webhook_secret_stdin: bool,
) -> dict[str, Any]:
    """Return the body of PUT …/credentials. Empty if nothing was given. With `may_prompt`, prompts on a terminal for the token of an HTTP
    remote."""
    if token_stdin and webhook_secret_stdin:
        raise click.UsageError(
            "Standard input can be either the token or the webhook secret. Set the other with `sandyard project token`."
        )
    if len({app_id is None, installation_id is None, private_key is None}) > 1:
        raise click.UsageError("A GitHub App needs --app-id, --installation-id and --private-key.")
    body: dict[str, Any] = {}
    if token_stdin:
        body["token"] = _read_line("token")
    if webhook_secret_stdin:
        body["webhookSecret"] = _read_line("secret")
    if ssh_key is not None:
        body["sshKey"] = _read_key_file(ssh_key)
    if app_id is not None and private_key is not None:
        body["app"] = {
            "appId": app_id,
            "installationId": str(installation_id),
            "privateKey": _read_key_file(private_key),
        }
    if not body and may_prompt and _uses_http(repository) and sys.stdin.isatty():
        host = urlsplit(repository or "").hostname or "the repository"
        if typed := click.prompt(
            f"Token for {host} (leave empty for none)", "", hide_input=True, show_default=False, err=True
        ).strip():
            body["token"] = typed
    if username is not None:
        if "token" not in body:
            raise click.UsageError("Use --username together with a token.")
        body["username"] = username
    return body


def _uses_http(repository: str | None) -> bool:
    return (repository or "").lower().startswith(("http://", "https://"))


def _read_line(what: str) -> str:
    value = sys.stdin.readline(MAX_BYTES).strip()
    if not value:
        raise CommandError(f"No {what} on standard input: it is empty.")
    return value


def _read_key_file(path: Path) -> str:
    with path.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES or not content.strip():
        raise CommandError(f"{path} is not a key: it is {'empty' if not content.strip() else 'too large'}.")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not a key: it is not text.") from None
