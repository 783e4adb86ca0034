"""What an agent has in the place of a key: it opens the platform's gateway, for one sandbox, and nothing anywhere else."""

from __future__ import annotations

import hmac

from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault

PREFIX = "syc_"


class Capabilities:
    """Nothing is stored: every platform with the same vault makes the same one."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def of(self, sandbox_id: str) -> Secret:
        """Blocks for a moment when the vault's key is first read."""
        key = self._vault.derive("model capability")
        return Secret(PREFIX + hmac.new(key, sandbox_id.encode(), "sha256").hexdigest())
