"""The messages between the engine, its sidecar and the keepers on Ray's nodes: JSON, one message per line on the socket.

Engine to sidecar: a `ConnectRequest` as `{"connect": …}` first, then `{"id": 1, "machine": …, "order": …}` with a `StartRequest` to start
a host service. Sidecar to engine: every second `{"machines": […]}`, and `{"id": 1, "result": …}` or `{"id": 1, "error": …}`;
`{"failed": …}` before it ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sandyard.engine.hosts.machines import Machine, normalize_address
from sandyard.kit.errors import SandyardError, UnreachableError

MAX_LINE = 4 << 20
NOT_JOINED = "not_joined"
RESOURCE = "sandyard"
"""The resource that marks nodes of Ray which may run sandboxes: `ray start --resources='{"sandyard": 1}'`."""


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A request to the sidecar to connect to a cluster. Each engine of a cluster has its own namespace."""

    address: str
    namespace: str


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A request to a keeper to start the host service of its machine. `fingerprint` is that of the engine's authority for hosts."""

    fingerprint: str
    name: str
    address: str
    port: int
    token: str | None = None

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> StartRequest:
        fields = json.loads(text)
        return cls(**{name: fields.get(name) for name in cls.__slots__})

    def __repr__(self) -> str:
        return f"StartRequest({self.name!r}, {self.address!r}, {self.port})"  # without the token


def encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def parse(line: bytes) -> Mapping[str, Any]:
    """Return a message. Raises UnreachableError if it is damaged."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise UnreachableError("The sidecar for Ray sent an invalid message.")
    return message


def parse_machines(listed: Any) -> list[Machine]:
    """Return the machines of a message. Raises UnreachableError if it is damaged."""
    try:
        return [Machine(str(item["id"]), str(item["name"]), _parse_address(str(item["address"]))) for item in listed]
    except (KeyError, TypeError) as error:
        raise UnreachableError(f"The sidecar for Ray sent an invalid list of machines: {error!r}.") from error


def _parse_address(address: str) -> str:
    return normalize_address(address) or address  # an invalid one is refused when its host service is to be started


def describe_error(error: BaseException) -> dict[str, str]:
    """Return an error as a message. Errors are sent as text, because the other end may be another release."""
    if isinstance(error, SandyardError):
        return {"error": error.message}
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return {"error": f"{type(error).__name__}: {' '.join(lines[:1] + lines[-1:] if len(lines) > 1 else lines)}"[:1000]}
