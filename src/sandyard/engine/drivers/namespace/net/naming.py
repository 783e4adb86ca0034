"""The names under which one instance is known to the kernel, different from every other instance on the machine."""

from __future__ import annotations

import base64
import hashlib
import string
from dataclasses import dataclass

ANY_CABLE = "sdy"
"""How the host's interface of any sandbox of any instance begins."""


@dataclass(frozen=True, slots=True)
class Names:
    tag: str
    group: int  # of interfaces; even, the odd one after it is the instance's too

    @classmethod
    def of(cls, instance: str) -> Names:
        digest = hashlib.sha256(instance.encode()).digest()
        tag = base64.b32encode(digest).decode().lower()[:5]
        return cls(tag, (int.from_bytes(digest[-4:], "big") & 0x3FFFFFFE) | 0x40000000)

    @property
    def prefix(self) -> str:
        """How the interfaces of this instance begin."""
        return f"{ANY_CABLE}{self.tag}-"

    @property
    def table(self) -> str:
        """The nftables table (family inet)."""
        return f"sandyard_{self.tag}"

    @property
    def label(self) -> str:
        """Of the gateway's address on `lo`, where earlier versions had it."""
        return f"lo:sdy{self.tag}"

    def interface(self, index: int, generation: int) -> str:
        """At most 15 characters, the kernel's limit, for an index below 100,000. The letter tells a new cable from one
        of the same index that the kernel has not finished removing."""
        return f"{self.prefix}{index}{string.ascii_lowercase[generation % 26]}"
