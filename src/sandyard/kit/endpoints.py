"""Format the addresses of servers."""

from __future__ import annotations

_LOOPBACK_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - keyed by the address of all interfaces


def format_endpoint(host: str, port: int) -> str:
    """Return `HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def make_local_url(host: str, port: int) -> str:
    """Return the URL at which a client on this machine reaches a server that listens there."""
    return f"http://{format_endpoint(_LOOPBACK_ADDRESSES.get(host, host), port)}"
