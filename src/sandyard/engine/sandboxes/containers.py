"""Decide whether programs in a new sandbox may create containers (Docker), as its client or its template requests.

It is off unless somebody asks for it, because it makes more of the kernel reachable: of gVisor's kernel, or, at the level
namespace, of the host's. Unless the operator allows the latter, a sandbox that asks for containers and for no level gets
gVisor. If containers are asked for and not available, the sandbox is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sandyard.engine.contract import Capabilities, Isolation
from sandyard.engine.sandboxes.model import Template
from sandyard.kit.errors import InvalidInputError, UnsupportedError

METADATA_KEY = "sandyard.containers"
"""Metadata of a create request: "true" or "false". Every E2B client can send metadata."""
Allowed = bool | Literal["gvisor"]
"""The operator's setting: everywhere, nowhere, or only at this isolation level."""
TEMPLATE_VARIABLE = "SANDYARD_CONTAINERS"
"""Environment variable of a template: the same for its sandboxes, unless their metadata says otherwise."""


def choose_containers(
    metadata: Mapping[str, str],
    template: Template,
    isolation: Isolation,
    capabilities: Capabilities,
    *,
    allowed: Allowed,
) -> bool:
    """Return whether a new sandbox may run containers. `allowed` is the operator's setting. Raises InvalidInputError if a
    value is not a boolean, and UnsupportedError, with the reason and the remedy, if a sandbox asks for containers that
    are not allowed or not available at its isolation level."""
    wanted = is_requested(metadata, template)
    check_allowed(wanted, isolation, allowed=allowed)
    if wanted:
        capabilities.check_containers(isolation)
    return wanted


def check_gvisor_containers(capabilities: Capabilities) -> None:
    """Raise UnsupportedError, with the reason and the remedy, if no sandbox can run containers with gVisor."""
    if Isolation.GVISOR not in capabilities.containers:
        reason = capabilities.missing.get(f"containers.{Isolation.GVISOR.value}", "this engine does not support it")
        raise UnsupportedError(
            f"Containers in sandboxes need gVisor, which is not available: {reason}. If you trust the code in your sandboxes, "
            "the engine's operator can allow them without gVisor: SANDYARD_ALLOW_CONTAINERS=true."
        )


def check_allowed(containers: bool, isolation: Isolation, *, allowed: Allowed) -> None:
    """Raise UnsupportedError if a new sandbox would run `containers` and the operator does not allow that."""
    if not containers or allowed is True or isolation.value == allowed:
        return
    if allowed:
        raise UnsupportedError(
            f"This engine allows containers only at the isolation level {allowed}. Request that level, or ask the engine's "
            "operator to set SANDYARD_ALLOW_CONTAINERS=true."
        )
    raise UnsupportedError("Containers in sandboxes are not allowed by the operator of this engine.")


def is_requested(metadata: Mapping[str, str], template: Template) -> bool:
    """Return whether the client or the template asks for containers. Raises InvalidInputError if a value is not a
    boolean."""
    if METADATA_KEY in metadata:
        return _parse(metadata[METADATA_KEY], f"The metadata {METADATA_KEY}")
    if template.containers is not None:
        return template.containers
    if TEMPLATE_VARIABLE in template.env:
        return _parse(template.env[TEMPLATE_VARIABLE], f"{TEMPLATE_VARIABLE} of the template {template.id}")
    return False


def _parse(value: str, source: str) -> bool:
    if value not in {"true", "false"}:
        raise InvalidInputError(f"{source} is {value[:100]!r}. Use true or false.")
    return value == "true"
