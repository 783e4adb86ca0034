"""The words for MCP servers: what one is, what people are told of it, and how an agent is told of it."""

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
"""The code of the notice in a session whose agent cannot use a server."""
MAX_SERVERS = 20
MAX_COMMAND, MAX_ARGS, MAX_ARG = 4096, 100, 4096
MAX_ENV, MAX_VALUE = 50, 8192
MAX_URL, MAX_HEADERS, MAX_HEADER = 2000, 20, 4000
NAME = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38}[A-Za-z0-9])?"
"""No underscores: agents make a tool's name of the server's and the tool's with underscores between them."""
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,199}"
_SHOWN = 4  # characters of a header's value
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_RESERVED = frozenset(
    "accept accept-encoding connection content-encoding content-length content-type expect forwarded host keep-alive last-event-id "
    "origin proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)


class ServerType(StrEnum):
    STDIO = "stdio"  # a command in the sandbox, which speaks on its standard input and output
    HTTP = "http"  # a URL, over the platform's gateway


class McpTestFailedError(ConflictError):
    """The MCP server does not work, and nothing was stored."""

    code = "connection_test_failed"

    def __init__(self, detail: str) -> None:
        super().__init__(f"{detail} Nothing was saved.")
        self.detail = detail

    @property
    def extra(self) -> Mapping[str, object]:
        return {"findings": [{"what": "mcp", "ok": False, "detail": self.detail}]}


@dataclass(frozen=True, slots=True)
class HeaderInfo:
    """All that anybody is told of a header."""

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
class Probe:
    """What came of a test."""

    ok: bool
    detail: str
    duration_ms: int
    server: str | None = None
    tools: tuple[str, ...] = ()


def info(row: McpServer) -> McpServerInfo:
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


# what may be stored ------------------------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise InvalidInputError("An MCP server's name has 1 to 40 letters, digits and dashes, and no dash at its ends.")
    return name


def check_command(command: str) -> str:
    if not command.strip() or len(command) > MAX_COMMAND:
        raise InvalidInputError(f"The command is a program of 1 to {MAX_COMMAND} characters; its arguments are args.")
    return command.strip()


def check_args(args: Sequence[str]) -> list[str]:
    if len(args) > MAX_ARGS or any(len(one) > MAX_ARG for one in args):
        raise InvalidInputError(f"There are at most {MAX_ARGS} arguments of at most {MAX_ARG} characters.")
    return list(args)


def check_env(env: Mapping[str, str]) -> dict[str, str]:
    if len(env) > MAX_ENV or any(len(value) > MAX_VALUE for value in env.values()):
        raise InvalidInputError(f"There are at most {MAX_ENV} variables of at most {MAX_VALUE} characters.")
    for name in env:
        if not re.fullmatch(ENV_NAME, name):
            raise InvalidInputError(
                f"{name[:60]!r} is not a variable's name: it has letters, digits and underscores, and does not begin with a digit."
            )
    return dict(env)


def check_url(url: str) -> SplitResult:
    """InvalidInputError for what is not the address of an MCP server. Where it leads is not looked at."""
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
        raise InvalidInputError("This is not the URL of an MCP server: it looks like https://mcp.example.org/mcp")
    if "@" in parts.netloc:
        raise InvalidInputError("Remove the user name and password from the URL and use a header.")
    if parts.fragment:
        raise InvalidInputError("The URL of an MCP server has no '#' in it.")
    return parts


def check_header(name: str, value: Secret) -> None:
    if not _HEADER.fullmatch(name) or name.lower() in _RESERVED or name.lower().startswith("mcp-"):
        raise InvalidInputError(f"{name[:60]!r} cannot be set as a header of an MCP server.")
    text = value.reveal()
    if len(text) > MAX_HEADER or not _VALUE.fullmatch(text):
        raise InvalidInputError(
            f"The value of {name} is empty, longer than {MAX_HEADER} characters, or has line breaks or other characters that headers "
            "do not have. Copy it again."
        )


def hint_of(value: Secret) -> str:
    """Of a short one, four characters would be too much of it."""
    text = value.reveal()
    return f"…{text[-_SHOWN:]}" if len(text) >= 4 * _SHOWN else "…"


# how an agent is told of it ----------------------------------------------------------------------------------------------


def entry_of(row: McpServer, gateway: str, capability: Secret | None) -> dict[str, Any]:
    """As ACP has it. `gateway`: where the platform's gateway is inside the sandbox."""
    if row.type == ServerType.STDIO:
        env = [{"name": name, "value": value} for name, value in row.env.items()]
        return {"name": row.name, "command": row.command, "args": list(row.args), "env": env}
    headers = [] if capability is None else [{"name": "Authorization", "value": f"Bearer {capability.reveal()}"}]
    return {"type": "http", "name": row.name, "url": f"{gateway}/{row.id}", "headers": headers}


def fingerprint(rows: Sequence[McpServer]) -> str:
    """Changes with what agents are told. Empty: there are none. What the gateway adds is read anew for each request."""
    if not rows:
        return ""
    told = [[row.id, row.name, row.type, row.command, row.args, sorted(row.env.items())] for row in rows]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
