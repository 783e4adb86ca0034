"""The token with which a new host joins an engine."""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.secret import Secret

PREFIX = "syj_"
MAX_LENGTH = 1000
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]{1,253}):[0-9]{1,5}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[a-z0-9]{1,40}")


@dataclass(frozen=True, slots=True)
class JoinToken:
    """Everything that a new host needs to join: the engine's address and fingerprint, and a secret that allows it to join."""

    address: str  # ADDRESS:PORT at which the engine accepts new hosts
    fingerprint: str  # SHA-256 of the certificate of the engine's authority for hosts
    id: str
    secret: Secret

    def encode(self) -> Secret:
        """Return the token as one word of letters, digits, `-` and `_`."""
        fields = [self.address, self.fingerprint, self.id, self.secret.reveal()]
        text = base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode()
        return Secret(PREFIX + text.rstrip("="))

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Return the token that `encode` has encoded. Raises InvalidInputError."""
        text = text.strip()
        if not text.startswith(PREFIX) or len(text) > MAX_LENGTH:
            raise InvalidInputError(
                "This is not a join token. Create one with `sandyard host token` on the engine's machine."
            )
        text = text.removeprefix(PREFIX)
        try:
            fields = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
            address, fingerprint, token_id, secret = fields
            is_valid = (
                _ADDRESS.fullmatch(address)
                and _FINGERPRINT.fullmatch(fingerprint)
                and _ID.fullmatch(token_id)
                and isinstance(secret, str)
            )
        except (binascii.Error, ValueError, TypeError, RecursionError):
            is_valid = None
        if not is_valid:
            raise InvalidInputError("The join token is damaged. Copy the whole token, which is one long word.")
        return cls(address, fingerprint, token_id, Secret(secret))
