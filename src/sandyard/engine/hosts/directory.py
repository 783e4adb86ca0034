"""The registered hosts of an engine."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cryptography.hazmat.primitives.asymmetric import ec

from sandyard.engine.drivers.cluster.labels import validate_labels
from sandyard.engine.drivers.cluster.model import LOCAL_HOST_ID, HostRecord
from sandyard.engine.hosts.authority import HostAuthority, HostCertificate, compute_key_fingerprint
from sandyard.engine.hosts.validation import validate_address, validate_name, validate_port
from sandyard.engine.store.database import Database
from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.errors import ConflictError, NotFoundError
from sandyard.kit.ids import make_random_id
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

STATIC = "static"
"""The source of hosts that an administrator has started and joined."""
ID_PREFIX = "host-"
ID_LENGTH = 12
_EVACUATING, _LOST = 2, 3
"""Values of `draining` in the database for hosts that are drained and evacuated, or lost."""


def has_hosts(database: Database) -> bool:
    """Return whether hosts are registered in an engine's database."""
    return bool(database.query("SELECT 1 FROM hosts LIMIT 1"))


@dataclass(frozen=True, slots=True)
class HostDetails:
    """The description that a joining host sends. Raises InvalidInputError if a value is not valid."""

    name: str
    address: str
    port: int
    labels: Mapping[str, str]

    def __post_init__(self) -> None:
        validate_name(self.name)
        validate_address(self.address)
        validate_port(self.port)
        validate_labels(self.labels)


@dataclass(frozen=True, slots=True)
class RegisteredHost:
    """A host as the engine has registered it, with its key and its newest certificate."""

    record: HostRecord
    key_fingerprint: str  # of its public key, which stays the same as long as the host is registered
    serial: str
    expires_at: float  # of its certificate
    joined_at: float
    evacuating: bool = False  # while it is drained, its sandboxes are moved to other hosts
    source: str = STATIC  # that lists the machine

    @property
    def lost(self) -> bool:
        """Whether its sandboxes continue on other hosts. A lost host is also drained."""
        return self.record.lost


class Hosts:
    """The registered hosts, stored in the engine's database. Implements `HostDirectory`."""

    def __init__(self, database: Database, authority: HostAuthority | None, clock: Clock | None = None) -> None:
        """Read the hosts from the open database. The authority may be None if there are none and none can join."""
        self._database = database
        self._given_authority = authority
        self._clock = clock or SystemClock()
        self._callbacks: list[Callable[[], None]] = []
        rows = database.query(
            "SELECT id, name, address, port, labels, draining, key_fingerprint, serial, expires_at, joined_at, source "
            "FROM hosts ORDER BY joined_at, id"
        )
        self._hosts = {host.record.id: host for host in map(_parse_row, rows)}

    @property
    def _authority(self) -> HostAuthority:
        assert self._given_authority is not None, "an engine with hosts has an authority for them"
        return self._given_authority

    def list_records(self) -> Sequence[HostRecord]:
        """Return the registered hosts, oldest first."""
        return [host.record for host in self._hosts.values()]

    def list(self) -> Sequence[RegisteredHost]:
        """Return the registered hosts with their keys, oldest first."""
        return list(self._hosts.values())

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop whenever the result of `list_records` changes."""
        self._callbacks.append(callback)

    def make_client_context(self, host_id: str) -> ssl.SSLContext:
        """Return the TLS context for connections to this host. Raises NotFoundError if it is not registered."""
        self.get(host_id)
        return self._authority.get_client_context()

    def get(self, id_or_name: str) -> RegisteredHost:
        """Return a registered host. Raises NotFoundError."""
        found = self._find(id_or_name)
        if found is None:
            raise self.make_not_found(id_or_name)
        return found

    @staticmethod
    def make_not_found(id_or_name: str) -> NotFoundError:
        return NotFoundError(
            f"There is no host {id_or_name[:70]!r}. `sandyard host list` lists the hosts of this engine."
        )

    def list_emptied(self) -> Sequence[RegisteredHost]:
        """Return the hosts whose sandboxes are to be moved to others, or recovered there."""
        return [host for host in self._hosts.values() if host.evacuating or host.lost]

    def find_by_key(self, key_fingerprint: str) -> RegisteredHost | None:
        """Return the host with this public key."""
        return next((host for host in self._hosts.values() if host.key_fingerprint == key_fingerprint), None)

    def find_by_address(self, source: str, address: str) -> RegisteredHost | None:
        """Return the host of this source with this address."""
        found = (host for host in self._hosts.values() if host.source == source and host.record.address == address)
        return next(found, None)

    def register(
        self,
        key: ec.EllipticCurvePublicKey,
        details: HostDetails,
        mark_used: Callable[[], None],
        source: str = STATIC,
    ) -> tuple[HostRecord, HostCertificate]:
        """Register the host with this key and issue its certificate. `mark_used` marks the join token as used, in the
        transaction that stores the host. A host that is already registered keeps its id and its labels, except for those that it
        gives another value, and stays drained, evacuated or lost if it was. Raises ConflictError if another host has the name."""
        fingerprint = compute_key_fingerprint(key)
        known = self.find_by_key(fingerprint)
        self._require_unused(details.name, known)
        record = HostRecord(
            known.record.id if known is not None else make_random_id(ID_PREFIX, ID_LENGTH),
            details.name,
            validate_address(details.address),
            details.port,
            validate_labels({**(known.record.labels if known is not None else {}), **details.labels}),
            draining=known is not None and known.record.draining,
            lost=known is not None and known.lost,
        )
        certificate = self._authority.issue(record.id, key)
        joined_at = known.joined_at if known is not None else self._clock.now()
        registration = RegisteredHost(
            record,
            fingerprint,
            certificate.serial,
            certificate.expires_at,
            joined_at,
            evacuating=known is not None and known.evacuating,
            source=source,
        )
        self._store(registration, mark_used)
        return record, certificate

    def renew(self, key: ec.EllipticCurvePublicKey) -> HostCertificate:
        """Issue a new certificate to the registered host with this key. Raises NotFoundError."""
        host = self.find_by_key(compute_key_fingerprint(key))
        if host is None:
            raise NotFoundError(
                "This host is not registered with the engine, or was removed. Join again with `sandyard host join`."
            )
        certificate = self._authority.issue(host.record.id, key)
        self._store(replace(host, serial=certificate.serial, expires_at=certificate.expires_at))
        log.info("host_certificate_renewed", host=host.record.id, serial=certificate.serial)
        return certificate

    def update(
        self,
        id_or_name: str,
        *,
        name: str | None = None,
        address: str | None = None,
        port: int | None = None,
        labels: Mapping[str, str | None] | None = None,
        draining: bool | None = None,
        evacuating: bool | None = None,
        lost: bool | None = None,
    ) -> HostRecord:
        """Change a host. Labels with the value None are removed; labels that are not given are kept. A host that is evacuated
        or lost is also drained. Raises NotFoundError, InvalidInputError, and ConflictError if another host has the name."""
        host = self.get(id_or_name)
        if evacuating or lost:
            draining, evacuating, lost = True, bool(evacuating) and not lost, bool(lost)
        evacuates = host.evacuating if evacuating is None else evacuating
        is_lost = host.lost if lost is None else lost
        record = host.record
        if name is not None:
            self._require_unused(validate_name(name), host)
            record = replace(record, name=name)
        if address is not None:
            record = replace(record, address=validate_address(address))
        if port is not None:
            record = replace(record, port=validate_port(port))
        if labels is not None:
            merged = {**record.labels, **labels}
            record = replace(
                record, labels=validate_labels({key: value for key, value in merged.items() if value is not None})
            )
        if draining is not None:
            record = replace(record, draining=draining)
        record = replace(record, lost=is_lost and record.draining)
        changed = replace(host, record=record, evacuating=evacuates and record.draining)
        if changed != host:
            self._store(changed)
            log.info("host_changed", host=record.id, name=record.name, draining=record.draining)
        return record

    def forget(self, id_or_name: str) -> HostRecord:
        """Remove a host. The engine no longer connects to it, and its certificate is not renewed. Raises NotFoundError."""
        record = self.get(id_or_name).record
        self._database.execute("DELETE FROM hosts WHERE id = ?", (record.id,))
        del self._hosts[record.id]
        log.info("host_forgotten", host=record.id, name=record.name)
        self._report_change()
        return record

    def _find(self, id_or_name: str) -> RegisteredHost | None:
        by_id = self._hosts.get(id_or_name)
        return by_id or next((host for host in self._hosts.values() if host.record.name == id_or_name), None)

    def _require_unused(self, name: str, owner: RegisteredHost | None) -> None:
        """Raise ConflictError if the name is reserved, or is the name or id of a host other than `owner`."""
        other = self._find(name)
        if name == LOCAL_HOST_ID or name.startswith(ID_PREFIX):
            raise ConflictError(f"The name {name!r} is reserved. Choose another one with --name.")
        if other is not None and (owner is None or other.record.id != owner.record.id):
            raise ConflictError(
                f"Another host is called {name!r}. Choose another name with --name, or remove that host with "
                f"`sandyard host forget {name}` if it no longer exists."
            )

    def _store(self, host: RegisteredHost, mark_used: Callable[[], None] = lambda: None) -> None:
        record = host.record
        values = (
            record.id,
            record.name,
            record.address,
            record.port,
            json.dumps(dict(record.labels), sort_keys=True),
            _LOST if host.lost else _EVACUATING if host.evacuating else int(record.draining),
            host.key_fingerprint,
            host.serial,
            host.expires_at,
            host.joined_at,
            host.source,
        )
        with self._database.transaction():
            mark_used()
            self._database.execute("DELETE FROM hosts WHERE id = ?", (record.id,))
            self._database.execute(
                "INSERT INTO hosts (id, name, address, port, labels, draining, key_fingerprint, serial, expires_at, joined_at, "
                "source) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
        before = self._hosts.get(record.id)
        self._hosts[record.id] = host
        if before is None or (before.record, before.evacuating) != (record, host.evacuating):
            self._report_change()

    def _report_change(self) -> None:
        for callback in self._callbacks:
            callback()


def _parse_row(row: Sequence[object]) -> RegisteredHost:
    host_id, name, address, port, labels, draining, fingerprint, serial, expires_at, joined_at, source = row
    record = HostRecord(
        str(host_id),
        str(name),
        str(address),
        int(str(port)),
        json.loads(str(labels)),
        draining=bool(draining),
        lost=draining == _LOST,
    )
    return RegisteredHost(
        record,
        str(fingerprint),
        str(serial),
        float(str(expires_at)),
        float(str(joined_at)),
        evacuating=draining == _EVACUATING,
        source=str(source),
    )
