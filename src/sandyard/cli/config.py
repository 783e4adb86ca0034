"""The server's address and the token: from the environment, or from what `sandyard login` stored.

`SANDYARD_URL` and `SANDYARD_TOKEN` override the file. A stored token is only sent to the address it was stored with.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sandyard.cli.errors import CommandError
from sandyard.kit.secret import Secret

DEFAULT_URL = "http://127.0.0.1:8700"
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True)
class Login:
    """A server address and its token. `token_id` is set if `sandyard login` created the token, which `sandyard logout` then revokes."""

    url: str = DEFAULT_URL
    token: Secret | None = None
    token_id: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine."""
        return urlsplit(self.url).hostname in LOOPBACK

    @property
    def is_unencrypted(self) -> bool:
        """Whether the token would cross a network unencrypted."""
        return urlsplit(self.url).scheme == "http" and not self.is_local


def get_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the configuration file, which may not exist."""
    environ = os.environ if environ is None else environ
    home = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "sandyard" / "config.json"


def load(environ: Mapping[str, str] | None = None) -> Login:
    """Return the current login. Raises CommandError if the file exists but is invalid."""
    environ = os.environ if environ is None else environ
    stored = _read_login(get_path(environ))
    url = environ.get("SANDYARD_URL")
    address = validate_url(url) if url else stored.url
    if token := environ.get("SANDYARD_TOKEN", "").strip():
        return Login(address, Secret(token))
    return stored if address == stored.url else Login(address)


def save(login: Login, environ: Mapping[str, str] | None = None) -> Path:
    """Store the login, and return the file. It is replaced atomically, and only its owner can read it."""
    file = get_path(environ)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = {"url": login.url, "token": login.token.reveal() if login.token else None, "tokenId": login.token_id}
    temporary = file.with_name(f".config-{os.getpid()}.json")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            json.dump(content, stream, indent=2)
            stream.write("\n")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return file


def delete_token(environ: Mapping[str, str] | None = None) -> Login:
    """Remove the token from the file and keep the address. Return what was stored. Idempotent."""
    stored = _read_login(get_path(environ))
    if stored.token is not None:
        save(Login(stored.url), environ)
    return stored


def validate_url(text: str) -> str:
    """Return `text` as an HTTP URL without a trailing slash. Raises CommandError if it is not an address of a server."""
    text = text.strip()
    if "://" not in text:
        text = f"http://{text}"
    if not _is_server_url(text):
        raise CommandError(f"{text!r} is not a server address. Use a URL such as http://127.0.0.1:8700.")
    return text.rstrip("/")


def _is_server_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        has_valid_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    has_other_parts = bool(parts.query or parts.fragment or parts.username)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and has_valid_port and not has_other_parts


def _read_login(file: Path) -> Login:
    try:
        content: Any = json.loads(file.read_text())
        token = content.get("token")
        return Login(validate_url(content["url"]), Secret(token) if token else None, content.get("tokenId"))
    except FileNotFoundError:
        return Login()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandError(
            f"{file} is not a valid configuration file. Delete it and log in again with `sandyard login`."
        ) from error
