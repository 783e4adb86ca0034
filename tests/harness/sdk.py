"""Read private attributes of the E2B SDK's sandboxes that tests need."""

from __future__ import annotations

from typing import Any


def get_access_token(sandbox: Any) -> str | None:
    """Return the token that requests to the sandbox's guest agent carry, or None if it has none."""
    token: str | None = sandbox._envd_access_token
    return token


def get_agent_version(sandbox: Any) -> Any:
    """Return the version of the guest agent that the engine has reported."""
    return sandbox._envd_version
