"""The pods of the host service, as the API server describes them. Each makes its node a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandyard.engine.hosts.machines import Machine, normalize_address

LABEL = "app.kubernetes.io/name=sandyard-host"
"""The label of the pods, in deploy/kubernetes."""
MAX_NAME = 63


@dataclass(frozen=True, slots=True)
class HostPod:
    """A pod that a node has accepted. The machine has the id of the pod: if the pod is replaced, the machine has come back."""

    machine: Machine
    name: str
    problem: str | None = None  # why its host service does not run
    has_ended: bool = False  # and is not started again by its node


def parse_pod(pod: Mapping[str, Any]) -> HostPod | None:
    """Return a pod, or None if no node has accepted it yet."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    uid, name, node = metadata.get("uid"), metadata.get("name"), (pod.get("spec") or {}).get("nodeName")
    address = normalize_address(str(status.get("hostIP") or ""))
    if not (uid and name and node and address):
        return None
    machine = Machine(str(uid), str(node)[:MAX_NAME].rstrip(".-"), address)
    phase = status.get("phase")
    if phase in ("Failed", "Succeeded"):
        reason = _join(status.get("reason"), status.get("message")) or phase
        return HostPod(machine, str(name), f"The pod {name} has ended: {reason}.", has_ended=True)
    if metadata.get("deletionTimestamp"):
        return HostPod(machine, str(name), f"The pod {name} is being deleted.")
    problem = _find_problem(status)
    return HostPod(machine, str(name), problem and f"The pod {name} does not run: {problem}.")


def _find_problem(status: Mapping[str, Any]) -> str | None:
    containers = status.get("containerStatuses") or []
    for container in containers:
        state = container.get("state") or {}
        if "running" in state:
            continue
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting or ended:
            return _join(waiting.get("reason") or ended.get("reason"), waiting.get("message") or ended.get("message"))
        return "its container waits"
    return None if containers else f"it is {str(status.get('phase') or 'Pending').lower()}"


def _join(*parts: object) -> str:
    return ": ".join(str(part).strip().rstrip(".")[:500] for part in parts if part)
