"""The values of the driver contract as JSON, for the connection between an engine and a host service.

Both may be of different releases. Fields that are not known are ignored in what a host reports; in what it has to do,
they are an error, because a sandbox must never be created with less than what was asked for. Fields that have their
default value are left out, so that a new field concerns an older host only if it is used.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from itertools import islice
from typing import Any, TypeVar

from sandyard.engine.contract import (
    Capabilities,
    DeniedAttempt,
    FileEntry,
    FileKind,
    FileOwner,
    Handle,
    Isolation,
    Limits,
    Mount,
    NetworkPolicy,
    Spec,
    Stats,
)
from sandyard.engine.drivers.cluster.model import HostRoom
from sandyard.kit import errors
from sandyard.kit.errors import SandyardError, UnsupportedError

Json = Mapping[str, Any]
T = TypeVar("T")

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions raised by reading a message that this release does not understand."""
MAX_TEXT = 2000
"""How many characters of a text of the other end are used."""
MAX_HANDLE_BYTES = 256 * 1024
_MAX_ITEMS, _MAX_MISSING = 1000, 100
_MAX_INTEGER = 1 << 62

_ERRORS: Mapping[str, type[SandyardError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, SandyardError) and kind.__module__ == errors.__name__
}


def encode_error(error: BaseException) -> list[str]:
    """Return the class and the message of an error. The other end need not have the same class: the nearest one of
    `kit.errors` is used."""
    for kind in type(error).__mro__:
        if _ERRORS.get(kind.__name__) is kind:
            assert isinstance(error, SandyardError)
            return [kind.__name__, error.message]
    return [SandyardError.__name__, f"{type(error).__name__}: {error}"]


def decode_error(plain: Any) -> SandyardError:
    """Return the error that `encode_error` described."""
    try:
        name, message = plain
    except (TypeError, ValueError):
        return SandyardError("The other end reported an error that cannot be read.")
    return _ERRORS.get(str(name), SandyardError)(str(message)[:MAX_TEXT])


def encode_handle(handle: Handle) -> Json:
    return {"id": handle.id, "driver": handle.driver, "data": dict(handle.data)}


def decode_handle(plain: Json) -> Handle:
    return Handle(str(plain["id"]), sys.intern(str(plain["driver"])), _share_names(dict(plain["data"])))


def _share_names(plain: Any) -> Any:
    """Return equal data in which names of fields and of layers are the same objects for all handles: an engine has many
    thousands of them."""
    if isinstance(plain, dict):
        return {sys.intern(str(name)): _share_names(value) for name, value in plain.items()}
    if isinstance(plain, list):
        return [sys.intern(value) if isinstance(value, str) else _share_names(value) for value in plain]
    return plain


def decode_started(plain: Json, sandbox_id: str) -> tuple[Handle, int]:
    """Return the handle of a sandbox that a host has started, and the number of its life. Raises ValueError if it is the
    handle of another sandbox: a host could otherwise get what belongs to that one."""
    return decode_own_handle(plain, sandbox_id), int(plain["life"])


def decode_own_handle(plain: Json, sandbox_id: str) -> Handle:
    """Return the new handle of this sandbox. Raises ValueError if it is that of another one, or too large to be stored."""
    if len(json.dumps(plain["handle"])) > MAX_HANDLE_BYTES:  # before its names are kept
        raise ValueError("the handle of the sandbox is too large")
    handle = decode_handle(plain["handle"])
    if handle.id != sandbox_id:
        raise ValueError("it is about another sandbox")
    return Handle(sandbox_id, handle.driver, handle.data)


def encode_spec(spec: Spec) -> Json:
    plain: dict[str, Any] = {"id": spec.id, "layers": list(spec.layers), "limits": asdict(spec.limits)}
    plain |= {"network": spec.network.to_dict(), "isolation": spec.isolation.value}
    if spec.mounts:
        plain["mounts"] = [_drop_defaults(mount) for mount in spec.mounts]
    if spec.containers:
        plain["containers"] = True
    return plain


def decode_spec(plain: Json) -> Spec:
    """Raises UnsupportedError if the spec has something that this release does not know."""
    _reject_unknown(Spec, plain)
    for mount in plain.get("mounts", ()):
        _reject_unknown(Mount, mount)
    return Spec(
        str(plain["id"]),
        tuple(map(str, plain["layers"])),
        Limits(**_pick(Limits, plain["limits"])),
        NetworkPolicy.from_dict(plain["network"]),
        tuple(Mount(**mount) for mount in plain.get("mounts", ())),
        _decode_isolation(plain["isolation"]),
        bool(plain.get("containers", False)),
    )


def _decode_isolation(value: str) -> Isolation:
    try:
        return Isolation(value)
    except ValueError:
        raise UnsupportedError(f"This host does not know the isolation level {value!r}. Upgrade it.") from None


def encode_stats(stats: Stats) -> Json:
    return asdict(stats)


def decode_stats(plain: Json) -> Stats:
    """Raises ValueError if a number is negative, among others: the engine reserves what sandboxes use."""
    stats = Stats(**_pick(Stats, plain))
    if min(asdict(stats).values()) < 0:
        raise ValueError("a measurement is negative")
    return stats


def encode_room(room: HostRoom) -> Json:
    return asdict(room)


def decode_room(plain: Json) -> HostRoom:
    room = HostRoom(**_pick(HostRoom, plain))
    return room if room.full is None else replace(room, full=room.full[:MAX_TEXT])


def encode_capabilities(capabilities: Capabilities) -> Json:
    plain = asdict(capabilities)
    return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in plain.items()} | {
        "missing": dict(capabilities.missing)
    }


def decode_capabilities(plain: Json) -> Capabilities:
    return Capabilities(
        freeze=bool(plain["freeze"]),
        suspend=_decode_levels(plain["suspend"]),
        memory_fork=_decode_levels(plain["memory_fork"]),
        live_copy=str(plain["live_copy"])[:MAX_TEXT],
        limits=frozenset(str(name)[:MAX_TEXT] for name in plain["limits"][:_MAX_ITEMS]),
        egress=bool(plain["egress"]),
        isolation=_decode_levels(plain["isolation"]),
        containers=_decode_levels(plain["containers"]),
        missing={
            str(name)[:MAX_TEXT]: str(reason)[:MAX_TEXT]
            for name, reason in islice(plain["missing"].items(), _MAX_MISSING)
        },
    )


def _decode_levels(values: Collection[str]) -> frozenset[Isolation]:
    """Return the levels that this release knows."""
    known = {level.value for level in Isolation}
    return frozenset(Isolation(value) for value in values if value in known)


def encode_denied(attempts: Collection[DeniedAttempt]) -> list[Json]:
    return [asdict(attempt) for attempt in attempts]


def decode_denied(plain: Sequence[Json]) -> list[DeniedAttempt]:
    return [DeniedAttempt(**_pick(DeniedAttempt, attempt)) for attempt in plain[:_MAX_ITEMS]]


def encode_entry(entry: FileEntry) -> Json:
    return asdict(entry)


def decode_entry(plain: Json) -> FileEntry:
    known = {kind.value for kind in FileKind}
    kind = FileKind(plain["kind"]) if plain["kind"] in known else FileKind.UNKNOWN
    return FileEntry(**{**_pick(FileEntry, plain), "kind": kind})


def encode_owner(owner: FileOwner) -> Json:
    return asdict(owner)


def decode_owner(plain: Json) -> FileOwner:
    return FileOwner(**_pick(FileOwner, plain))


def _pick(kind: Any, plain: Json) -> dict[str, Any]:
    """Return the values of those fields that this release knows. Raises ValueError if one has the wrong type: it would
    otherwise fail wherever it is used."""
    values = {field.name: plain[field.name] for field in fields(kind) if field.name in plain}
    for field in fields(kind):
        is_valid = _VALID.get(str(field.type))
        if field.name in values and is_valid is not None and not is_valid(values[field.name]):
            raise ValueError(f"the value of {field.name} is not valid")
    return values


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_INTEGER


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value) and abs(value) <= _MAX_INTEGER)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_VALID: Mapping[str, Callable[[Any], bool]] = {
    "int": _is_integer,
    "int | None": lambda value: value is None or _is_integer(value),
    "float": _is_number,
    "str": _is_text,
    "str | None": lambda value: value is None or _is_text(value),
}
"""Whether a value fits the type of a field."""


def _drop_defaults(value: Any) -> dict[str, Any]:
    """Return the fields that do not have their default value."""
    plain = asdict(value)
    return {
        field.name: plain[field.name]
        for field in fields(value)
        if field.default is MISSING or getattr(value, field.name) != field.default
    }


def _reject_unknown(kind: Any, plain: Json) -> None:
    unknown = set(plain) - {field.name for field in fields(kind)}
    if unknown:
        raise UnsupportedError(
            f"This host does not know what {', '.join(sorted(unknown))} means, because its version is older than the "
            "engine's. Upgrade it."
        )
