"""MCP servers: types, validation and configuration of agents."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx

from sandyard.kit.errors import ConflictError, InvalidInputError
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import McpServer

SERVER_FAILED = "mcp_server_failed"
"""Code of the notice in a session whose agent cannot use a server."""
MAX_SERVERS = 20
MAX_COMMAND, MAX_ARGS, MAX_ARG = 4096, 100, 4096
MAX_ENV, MAX_VALUE = 50, 8192
MAX_URL, MAX_HEADERS, MAX_HEADER = 2000, 20, 4000
NAME = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38}[A-Za-z0-9])?"
"""No underscores: agents join the server's and the tool's names with underscores."""
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,199}"
_HINT_LENGTH = 4  # how many characters of a header's value are shown
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_RESERVED_HEADERS = frozenset(
    "accept accept-encoding connection content-encoding content-length content-type expect forwarded host keep-alive last-event-id "
    "origin proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)


class ServerType(StrEnum):
    STDIO = "stdio"  # a command in the sandbox that uses its standard input and output
    HTTP = "http"  # a URL, through the platform's gateway


class McpTestFailedError(ConflictError):
    """The MCP server does not work. Nothing was saved."""

    code = "connection_test_failed"

    def __init__(self, detail: str) -> None:
        super().__init__(f"{detail} Nothing was saved.")
        self.detail = detail

    @property
    def extra(self) -> Mapping[str, object]:
        return {"findings": [{"what": "mcp", "ok": False, "detail": self.detail}]}


@dataclass(frozen=True, slots=True)
class HeaderInfo:
    """The visible part of a header."""

    name: str
    hint: str


@dataclass(frozen=True, slots=True)
class McpServerInfo:
    id: str
    project_id: str
    name: str
    type: ServerType
    command: str | None
    args: tuple[str, ...]
    env: Mapping[str, str]
    url: str | None
    headers: tuple[HeaderInfo, ...]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class McpTestResult:
    """The result of a test."""

    ok: bool
    detail: str
    duration_ms: int
    server: str | None = None
    tools: tuple[str, ...] = ()


def make_info(row: McpServer) -> McpServerInfo:
    return McpServerInfo(
        id=row.id,
        project_id=row.project_id,
        name=row.name,
        type=ServerType(row.type),
        command=row.command,
        args=tuple(row.args),
        env=dict(row.env),
        url=row.url,
        headers=tuple(HeaderInfo(name, hint) for name, hint in row.hints.items()),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


# validation --------------------------------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise InvalidInputError(
            "The name of an MCP server must have 1 to 40 letters, digits and hyphens, and must not start or end with a hyphen."
        )
    return name


def check_command(command: str) -> str:
    if not command.strip() or len(command) > MAX_COMMAND:
        raise InvalidInputError(
            f"The command must be a program of 1 to {MAX_COMMAND} characters. Put its arguments into args."
        )
    return command.strip()


def check_args(args: Sequence[str]) -> list[str]:
    if len(args) > MAX_ARGS or any(len(arg) > MAX_ARG for arg in args):
        raise InvalidInputError(f"Use at most {MAX_ARGS} arguments of at most {MAX_ARG} characters each.")
    return list(args)


def check_env(env: Mapping[str, str]) -> dict[str, str]:
    if len(env) > MAX_ENV or any(len(value) > MAX_VALUE for value in env.values()):
        raise InvalidInputError(f"Use at most {MAX_ENV} variables of at most {MAX_VALUE} characters each.")
    for name in env:
        if not re.fullmatch(ENV_NAME, name):
            raise InvalidInputError(
                f"{name[:60]!r} is not a valid variable name. Use letters, digits and underscores, and do not start with a digit."
            )
    return dict(env)


def check_url(url: str) -> SplitResult:
    """Validate and parse the URL of an MCP server. Raises InvalidInputError. Does not check whether the platform may contact its host."""
    text = url.strip()
    if len(text) > MAX_URL or not text.isascii() or any(letter <= " " or letter == "\x7f" for letter in text):
        raise InvalidInputError(f"The URL must be ASCII without spaces, with at most {MAX_URL} characters.")
    try:
        httpx.URL(text)
        parts = urlsplit(text)
        port = parts.port
    except (ValueError, httpx.InvalidURL):
        parts, port = SplitResult("", "", "", "", ""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or "\\" in text:
        raise InvalidInputError("This is not a valid URL of an MCP server. Example: https://mcp.example.org/mcp")
    if "@" in parts.netloc:
        raise InvalidInputError("Remove the username and password from the URL and use a header.")
    if parts.fragment:
        raise InvalidInputError("The URL of an MCP server must not contain '#'.")
    return parts


def check_header(name: str, value: Secret) -> None:
    if not _HEADER_NAME.fullmatch(name) or name.lower() in _RESERVED_HEADERS or name.lower().startswith("mcp-"):
        raise InvalidInputError(f"{name[:60]!r} cannot be set as a header of an MCP server.")
    text = value.reveal()
    if len(text) > MAX_HEADER or not _HEADER_VALUE.fullmatch(text):
        raise InvalidInputError(
            f"The value of {name} is empty, is longer than {MAX_HEADER} characters, or contains line breaks or other invalid "
            "characters. Copy it again."
        )


def make_hint(value: Secret) -> str:
    """Return the end of the value. Four characters of a short one would reveal too much."""
    text = value.reveal()
    return f"…{text[-_HINT_LENGTH:]}" if len(text) >= 4 * _HINT_LENGTH else "…"


# configuration of agents ------------------------------------------------------------------------------------------------


def make_acp_entry(row: McpServer, gateway: str, capability: Secret | None) -> dict[str, Any]:
    """Return the server's entry for ACP. `gateway`: the URL of the platform's gateway inside the sandbox."""
    if row.type == ServerType.STDIO:
        env = [{"name": name, "value": value} for name, value in row.env.items()]
        return {"name": row.name, "command": row.command, "args": list(row.args), "env": env}
    headers = [] if capability is None else [{"name": "Authorization", "value": f"Bearer {capability.reveal()}"}]
    return {"type": "http", "name": row.name, "url": f"{gateway}/{row.id}", "headers": headers}


def make_fingerprint(rows: Sequence[McpServer]) -> str:
    """Return a value that changes with the configuration of agents; empty without servers.

    Header values are not part of it: the gateway reads them for each request.
    """
    if not rows:
        return ""
    fields = [[row.id, row.name, row.type, row.command, row.args, sorted(row.env.items())] for row in rows]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]
