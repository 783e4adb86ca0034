"""The clients of `clients.toml`, and the document that says which of them work."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
TARGET = FOLDER.parents[2] / "docs" / "e2b-clients.md"

FIRST_WITH_ADDRESSES = (2, 7)
"""The release of the SDKs that knows `E2B_SANDBOX_URL`; ones before need the engine to have a domain."""

HEAD = """\
# Clients of E2B that work here

Made by `make clients` from a run of `tests/protocol/test_clients.py`, which is a part of `make test-all`; do not edit it by hand.
Each client is installed from its registry in these versions, unmodified, and uses sandboxes of a real engine in domain mode: it is
told `E2B_DOMAIN` and `E2B_API_KEY`, and whom to trust.

| client | packages | SDK | what was tried |
|---|---|---|---|
"""
TAIL = """
## Which settings a client needs
- SDKs from 2.7 on, for Python and JavaScript, can be pointed at any address: `E2B_API_URL`, `E2B_SANDBOX_URL` and `E2B_API_KEY`
  (`E2B_VOLUME_API_URL` for volumes). Neither names nor certificates are needed. Tried with Python's 2.6.4 and 2.7.0.
- SDKs before 2.7 know no `E2B_SANDBOX_URL`: they find sandboxes by name only, so that the engine needs a domain and TLS
  ([previews.md](previews.md#a-teams-server)), and the client `E2B_DOMAIN` and `E2B_API_KEY`. In the table those are {older}.
- Clients that pass a domain of their own to the SDK take it from `E2B_DOMAIN` as well.
"""


@dataclass(frozen=True, slots=True)
class Client:
    """`python` is the version it needs where this project's own is too old."""

    name: str
    does: str
    packages: tuple[str, ...]
    node: bool = False
    python: str | None = None

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())

    @property
    def script(self) -> Path:
        return FOLDER / f"{self.slug.replace('-', '_')}.{'mjs' if self.node else 'py'}"

    @property
    def pinned(self) -> dict[str, str]:
        """Packages that are pinned to one version."""
        pairs = (package.rpartition("@" if self.node else "==") for package in self.packages)
        return {name: version for name, _, version in pairs if name}

    @property
    def sdk(self) -> str:
        return self.pinned["e2b"]

    @property
    def needs_domain(self) -> bool:
        return tuple(int(part) for part in self.sdk.split(".")[:2]) < FIRST_WITH_ADDRESSES


def read_clients() -> list[Client]:
    entries = tomllib.loads((FOLDER / "clients.toml").read_text())["client"]
    return [Client(**{**entry, "packages": tuple(entry["packages"])}) for entry in entries]


def write_document(clients: Iterable[Client]) -> str:
    """The document with these clients, which were seen to work."""
    known = sorted(clients, key=lambda client: client.name.lower())
    rows = []
    for client in known:
        own = ", ".join(f"`{name}` {version}" for name, version in client.pinned.items() if name != "e2b")
        kind = "npm" if client.node else "PyPI"
        rows.append(f"| {client.name} | {own} | `e2b` {client.sdk} ({kind}) | {client.does} |")
    older = ", ".join(client.name for client in known if client.needs_domain) or "none"
    return HEAD + "\n".join(rows) + "\n" + TAIL.format(older=older)
