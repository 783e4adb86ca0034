"""The capability that an agent has in place of a key: it is valid only for the platform's gateway and for one sandbox."""

from __future__ import annotations

import hmac

from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault

PREFIX = "syc_"


class Capabilities:
    """Derive capabilities. Nothing is stored: every platform with the same vault derives the same one."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def derive(self, sandbox_id: str) -> Secret:
        """Return the sandbox's capability. Blocks briefly when the vault's key is first read."""
        key = self._vault.derive("model capability")
        return Secret(PREFIX + hmac.new(key, sandbox_id.encode(), "sha256").hexdigest())
