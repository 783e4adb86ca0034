"""The capability that an agent has in place of a key: it is valid only for the platform's gateway and for one sandbox."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault

PREFIX = "syc_"
_PURPOSE = "model capability"


class Capabilities:
    """Derives capabilities. Nothing is stored: every platform with the same vault derives the same ones."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def derive(self, sandbox_id: str) -> Secret:
        """Return the sandbox's capability. Blocks briefly when the vault's key is first read."""
        return _compute(self._vault.derive(_PURPOSE), sandbox_id)

    def is_valid(self, sandbox_id: str, candidates: Iterable[str]) -> bool:
        """Return whether one of these is the sandbox's capability. Capabilities of older keys of the vault are valid too,
        because a running agent keeps its capability when the key is rotated."""
        valid = [_compute(key, sandbox_id) for key in self._vault.derive_all(_PURPOSE)]
        return any(capability.matches(given) for given in candidates for capability in valid)


def _compute(key: bytes, sandbox_id: str) -> Secret:
    return Secret(PREFIX + hmac.new(key, sandbox_id.encode(), "sha256").hexdigest())
