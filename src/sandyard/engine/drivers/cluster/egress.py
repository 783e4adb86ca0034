"""Data that hosts get from the engine to apply network rules: values for placeholders, and certificates.

A host gets only what the rules of its own sandboxes need: another host, or an attacker who controls it, cannot collect
secrets or certificates that no sandbox there may use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol

from sandyard.engine.contract import HostRule, NetworkPolicy
from sandyard.engine.drivers.cluster.codec import Json
from sandyard.kit.errors import ForbiddenError, InvalidInputError, UnsupportedError


class Egress(Protocol):
    """The secrets and the authority of the engine."""

    async def fill(self, value: str) -> str:
        """Return the value with its placeholders replaced by secrets. Raises NotFoundError."""
        ...

    async def certify(self, host: str, key: str) -> str:
        """Return a certificate for a server with this name and this public key (PEM), which sandboxes accept."""
        ...


class EgressAnswers:
    """Answers the questions of hosts. `find_policy` returns the current policy of a sandbox."""

    def __init__(self, egress: Egress | None) -> None:
        self._egress = egress
        self.find_policy: Callable[[str], NetworkPolicy | None] = lambda sandbox_id: None

    def check_rules(self, policy: NetworkPolicy) -> None:
        """Raise UnsupportedError if a host could not apply the rules of this policy."""
        if policy.rules and self._egress is None:
            raise UnsupportedError("Network rules are not supported: this engine has no secrets and no certificates.")

    async def answer(self, verb: str, arguments: Json, sandboxes: Collection[str]) -> Any:
        """Answer a host that has these sandboxes. Raises ForbiddenError if none of their rules needs the answer."""
        if self._egress is None:
            raise UnsupportedError("This engine has no secrets and no certificates for network rules.")
        match verb:
            case "fill":
                value = str(arguments["value"])
                if not any(value == header for rule in self._list_rules(sandboxes) for _, header in rule.headers):
                    raise ForbiddenError("No network rule of a sandbox on this host has this header.")
                return await self._egress.fill(value)
            case "certify":
                host = str(arguments["host"])
                if not any(_applies(rule, host) for rule in self._list_rules(sandboxes)):
                    raise ForbiddenError(f"No network rule of a sandbox on this host is for {host[:200]}.")
                return await self._egress.certify(host, str(arguments["key"]))
        raise InvalidInputError(f"The engine does not know the question {verb!r}. Upgrade it.")

    def _list_rules(self, sandboxes: Collection[str]) -> Iterator[HostRule]:
        for sandbox_id in sandboxes:
            policy = self.find_policy(sandbox_id)
            if policy is not None:
                yield from policy.rules


def _applies(rule: HostRule, host: str) -> bool:
    name, wanted = host.lower(), rule.host.lower()
    return name.endswith(wanted[1:]) if wanted.startswith("*.") else name == wanted
