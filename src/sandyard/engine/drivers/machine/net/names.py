"""The names of one instance in the kernel, different from every other instance on the machine."""

from __future__ import annotations

import base64
import hashlib
import string
from dataclasses import dataclass

INTERFACE_PREFIX = "sdy"
"""Prefix of the host's interfaces of all sandboxes of all instances."""


@dataclass(frozen=True, slots=True)
class Names:
    tag: str
    group: int  # interface group; even, and the next odd one belongs to the instance too

    @classmethod
    def for_instance(cls, instance: str) -> Names:
        digest = hashlib.sha256(instance.encode()).digest()
        tag = base64.b32encode(digest).decode().lower()[:5]
        return cls(tag, (int.from_bytes(digest[-4:], "big") & 0x3FFFFFFE) | 0x40000000)

    @property
    def prefix(self) -> str:
        """Return the prefix of this instance's interfaces."""
        return f"{INTERFACE_PREFIX}{self.tag}-"

    @property
    def table(self) -> str:
        """Return the nftables table (family inet)."""
        return f"sandyard_{self.tag}"

    @property
    def label(self) -> str:
        """Return the label of the gateway's address on `lo`, used by earlier versions."""
        return f"lo:sdy{self.tag}"

    def make_interface_name(self, index: int, generation: int) -> str:
        """Return a name of at most 15 characters, the kernel's limit, for an index below 100,000. The letter
        distinguishes a new interface from one of the same index that the kernel has not finished removing."""
        return f"{self.prefix}{index}{string.ascii_lowercase[generation % 26]}"
