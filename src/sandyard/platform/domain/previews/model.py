"""Data types and errors of previews."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sandyard.kit.errors import SandyardError


@dataclass(frozen=True, slots=True)
class OpenPort:
    """A port that something listens on. `url` None: previews are not available here."""

    port: int
    address: str
    process: str | None
    url: str | None


@dataclass(frozen=True, slots=True)
class OpenPorts:
    """The open ports of a sandbox. `sleeping`: the sandbox is paused, and was not resumed to look."""

    items: tuple[OpenPort, ...]
    sleeping: bool = False


@dataclass(frozen=True, slots=True)
class PreviewLink:
    """A URL that grants access to whoever opens it first, until it expires."""

    url: str
    expires_at: datetime


class PreviewSleepingError(SandyardError):
    """The sandbox is paused. Reload the page to resume it."""

    code, status = "sandbox_sleeping", 503


class TooManyPreviewConnectionsError(SandyardError):
    """Too many connections to previews are open. Close some of their tabs, then try again."""

    code, status = "too_many_connections", 503


class PortClosedError(SandyardError):
    """Nothing is listening on this port of the sandbox. Start a server on it."""

    code, status = "port_closed", 502


class BrokenResponseError(SandyardError):
    """The server in the sandbox closed the connection before it responded. Check its output."""

    code, status = "answer_broken", 502
