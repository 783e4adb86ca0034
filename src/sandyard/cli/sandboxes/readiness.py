"""Wait for a sandbox that is being created."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sandyard.cli.connection import quote_segment
from sandyard.cli.errors import CommandError

if TYPE_CHECKING:
    from sandyard.cli.client import Client

TIMEOUT_SECONDS, POLL_SECONDS = 60.0, 0.1


def wait_until_ready(client: Client, sandbox_id: str, timeout: float = TIMEOUT_SECONDS) -> Any:
    """Return the sandbox once it is ready. Raises CommandError with the reason if it fails."""
    deadline = time.monotonic() + timeout
    while True:
        sandbox = client.get(f"/sandboxes/{quote_segment(sandbox_id)}")
        if sandbox["status"] in {"running", "paused"}:
            return sandbox
        if sandbox["status"] != "provisioning":
            reason = sandbox.get("error") or f"it is {sandbox['status']}"
            raise CommandError(f"Could not create sandbox {sandbox_id}: {str(reason).rstrip('.')}.")
        if time.monotonic() > deadline:
            raise CommandError(
                f"Sandbox {sandbox_id} is not ready after {timeout:.0f} s. To see its state: sandyard sandbox show {sandbox_id}"
            )
        time.sleep(POLL_SECONDS)
