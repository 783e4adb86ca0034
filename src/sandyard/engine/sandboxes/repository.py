"""Sandboxes as database rows. Immutable fields are in one JSON column; fields that operations change have their own
columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sandyard.engine.contract import Handle, Isolation, Limits, NetworkPolicy
from sandyard.engine.drivers.cluster.model import DRIVER_NAME, ELSEWHERE
from sandyard.engine.sandboxes.host_labels import NO_LABELS
from sandyard.engine.sandboxes.model import (
    CreateSandbox,
    Defaults,
    Intent,
    Network,
    OnTimeout,
    PauseKind,
    Sandbox,
    StartCommand,
    State,
)
from sandyard.engine.store.database import Database, Row
from sandyard.kit.secret import Secret

_FIXED = "id template_id created_at spec".split()
_CHANGING = (
    "state handle network started_at ends_at timeout_s on_timeout pause_kind paused_at memory_lost intent".split()
)
_COLUMNS = ", ".join(_FIXED + _CHANGING)
_INSERT = f"INSERT INTO sandboxes ({_COLUMNS}) VALUES ({', '.join('?' * (len(_FIXED) + len(_CHANGING)))})"  # noqa: S608
_UPDATE = f"UPDATE sandboxes SET {', '.join(f'{column} = ?' for column in _CHANGING)} WHERE id = ?"  # noqa: S608
_SELECT = f"SELECT seq, {_COLUMNS} FROM sandboxes ORDER BY seq"  # noqa: S608


@dataclass(frozen=True, slots=True)
class KeyUse:
    """The request that an idempotency key was used for, and its result."""

    digest: bytes
    sandbox_id: str


class SandboxRepository:
    """Synchronous, in the event loop's thread; each call takes microseconds. Group related calls in one
    `database.transaction()`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list_all(self) -> list[Sandbox]:
        """Return all sandboxes, oldest first."""
        return [_decode_row(row, self._database.machine) for row in self._database.query(_SELECT)]

    def insert(self, sandbox: Sandbox) -> Sandbox:
        """Insert the record and return it with its `seq`."""
        fixed = (sandbox.id, sandbox.template_id, sandbox.created_at, json.dumps(_encode_spec(sandbox)))
        return replace(sandbox, seq=self._database.insert(_INSERT, fixed + self._encode_mutable_fields(sandbox)))

    def update(self, sandbox: Sandbox) -> None:
        self._database.execute(_UPDATE, (*self._encode_mutable_fields(sandbox), sandbox.id))

    def update_spec(self, sandbox: Sandbox) -> None:
        """Also write the fields that otherwise do not change after the creation."""
        self._database.execute(
            "UPDATE sandboxes SET spec = ? WHERE id = ?", (json.dumps(_encode_spec(sandbox)), sandbox.id)
        )

    def delete(self, sandbox_id: str) -> None:
        self._database.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))

    def find_key_use(self, owner: str, key: str) -> KeyUse | None:
        rows = self._database.query(
            "SELECT digest, sandbox_id FROM idempotency WHERE owner = ? AND key = ?", (owner, key)
        )
        return KeyUse(*rows[0]) if rows else None

    def insert_key_use(self, owner: str, key: str, use: KeyUse, now: float) -> None:
        self._database.execute(
            "INSERT INTO idempotency VALUES (?, ?, ?, ?, ?)", (owner, key, use.digest, use.sandbox_id, now)
        )

    def delete_keys(self, before: float) -> None:
        self._database.execute("DELETE FROM idempotency WHERE created_at < ?", (before,))

    def _encode_mutable_fields(self, sandbox: Sandbox) -> tuple[Any, ...]:
        return _encode_mutable_fields(sandbox, self._database.machine)


def compute_digest(request: CreateSandbox) -> bytes:
    """Return a digest that is equal for equal requests; the idempotency key itself is left out."""
    plain = asdict(replace(request, idempotency_key=None))
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=dict).encode()).digest()


def _encode_spec(sandbox: Sandbox) -> dict[str, Any]:
    return {
        "alias": sandbox.alias,
        "name": sandbox.name,
        "layers": sandbox.layers,
        "limits": encode_limits(sandbox.limits),
        "isolation": sandbox.isolation.value,
        "containers": sandbox.containers,
        "host_labels": dict(sandbox.host_labels),
        "metadata": dict(sandbox.metadata),
        "env": dict(sandbox.env),
        "defaults": encode_defaults(sandbox.defaults),
        "start": encode_start(sandbox.start),
        "secure": sandbox.secure,
        "access_token": _reveal(sandbox.access_token),
        "traffic_token": _reveal(sandbox.traffic_token),
        "auto_pause_memory": sandbox.auto_pause_memory,
        "auto_resume": sandbox.auto_resume,
        "volume_mounts": [dict(mount) for mount in sandbox.volume_mounts],
        "extra": dict(sandbox.extra),
        "snapshots": sandbox.snapshots,
    }


def _encode_mutable_fields(sandbox: Sandbox, machine: str | None) -> tuple[Any, ...]:
    return (
        sandbox.state.value,
        json.dumps(_encode_handle(sandbox.handle, machine)),
        json.dumps(_encode_network(sandbox.network)),
        sandbox.started_at,
        sandbox.ends_at,
        sandbox.timeout_s,
        sandbox.on_timeout.value,
        sandbox.pause_kind and sandbox.pause_kind.value,
        sandbox.paused_at,
        sandbox.memory_lost,
        sandbox.intent and sandbox.intent.value,
    )


def _encode_handle(handle: Handle, machine: str | None) -> dict[str, Any]:
    """Return a handle, with the machine that the sandbox is on if engines on several machines share the database."""
    if handle.driver == ELSEWHERE:
        return dict(handle.data)
    encoded: dict[str, Any] = {"driver": handle.driver, "data": dict(handle.data)}
    if machine is not None and handle.driver != DRIVER_NAME:
        encoded["machine"] = machine
    return encoded


def _decode_handle(sandbox_id: str, encoded: Mapping[str, Any], machine: str | None) -> Handle:
    """Return the handle. A sandbox of another machine is out of reach: for the driver of this one, it would be absent."""
    if encoded.get("machine", machine) != machine:
        return Handle(sandbox_id, ELSEWHERE, encoded)
    return Handle(sandbox_id, encoded["driver"], encoded["data"])


def _encode_network(network: Network) -> dict[str, Any]:
    return {
        "policy": network.policy.to_dict(),
        "config": None if network.config is None else dict(network.config),
        "allow_internet": network.allow_internet,
    }


# The fields are written out, because `asdict` makes deep copies and costs more than the insert itself.


def encode_limits(limits: Limits) -> dict[str, int]:
    return {
        "memory_mb": limits.memory_mb,
        "cpu_count": limits.cpu_count,
        "pids": limits.pids,
        "disk_mb": limits.disk_mb,
    }


def encode_defaults(defaults: Defaults) -> dict[str, str | None]:
    return {"user": defaults.user, "workdir": defaults.workdir}


def encode_start(start: StartCommand | None) -> dict[str, str | None] | None:
    return None if start is None else {"command": start.command, "ready": start.ready}


def decode_start(spec: Mapping[str, Any]) -> StartCommand | None:
    """Read the start command from a row's JSON; older rows do not have it."""
    start = spec.get("start")
    return None if start is None else StartCommand(**start)


def _decode_row(row: Row, machine: str | None) -> Sandbox:
    seq, sandbox_id, template_id, created_at, spec_text, state, handle_text, network_text = row[:8]
    started_at, ends_at, timeout_s, on_timeout, pause_kind, paused_at, memory_lost, intent = row[8:]
    spec: Mapping[str, Any] = json.loads(spec_text)
    network = json.loads(network_text)
    return Sandbox(
        id=sandbox_id,
        template_id=template_id,
        state=State(state),
        handle=_decode_handle(sandbox_id, json.loads(handle_text), machine),
        layers=tuple(spec["layers"]),
        limits=Limits(**spec["limits"]),
        network=Network(
            policy=NetworkPolicy.from_dict(network["policy"]),
            config=network["config"],
            allow_internet=network["allow_internet"],
        ),
        created_at=created_at,
        started_at=started_at,
        ends_at=ends_at,
        timeout_s=timeout_s,
        isolation=Isolation(spec.get("isolation", Isolation.NAMESPACE)),  # older rows do not have it
        containers=spec.get("containers", False),  # likewise
        host_labels=spec.get("host_labels") or NO_LABELS,  # likewise
        alias=spec["alias"],
        name=spec["name"],
        pause_kind=PauseKind(pause_kind) if pause_kind else None,
        paused_at=paused_at,
        memory_lost=memory_lost,
        metadata=spec["metadata"],
        env=spec["env"],
        defaults=Defaults(**spec["defaults"]),
        start=decode_start(spec),
        secure=spec["secure"],
        access_token=_make_secret(spec["access_token"]),
        traffic_token=_make_secret(spec["traffic_token"]),
        on_timeout=OnTimeout(on_timeout),
        auto_pause_memory=spec["auto_pause_memory"],
        auto_resume=spec["auto_resume"],
        volume_mounts=tuple(spec["volume_mounts"]),
        extra=spec["extra"],
        snapshots=tuple(spec["snapshots"]),
        intent=Intent(intent) if intent else None,
        seq=seq,
    )


def _reveal(secret: Secret | None) -> str | None:
    return None if secret is None else secret.reveal()


def _make_secret(text: str | None) -> Secret | None:
    return None if text is None else Secret(text)
