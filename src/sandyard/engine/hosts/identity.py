"""The identity of a host, stored in its data directory: its id and name, its key and its certificate."""

from __future__ import annotations

import json
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from sandyard.engine.certificates import files
from sandyard.engine.certificates.files import CertificateError, Key, lock_folder
from sandyard.engine.hosts.enrollment import JoinResponse
from sandyard.kit.errors import ConflictError, NotFoundError

FOLDER = "identity"
RECORD, CERTIFICATE, AUTHORITY = "host.json", "certificate.pem", "authority.pem"
CHECK_INTERVAL_S = 1.0
"""Minimum interval between checks whether the certificate was renewed."""


@dataclass(frozen=True, slots=True)
class HostRegistration:
    """The registration of this machine as a host, as the machine itself stores it."""

    id: str
    name: str
    engine: str  # ADDRESS:PORT at which hosts join and renew their certificates
    port: int  # the port of the host service


class HostIdentity:
    """The files with a host's identity, in its data directory. Creating the object reads nothing."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir.absolute() / FOLDER

    @property
    def key_path(self) -> Path:
        return self.folder / files.KEY

    @property
    def certificate_path(self) -> Path:
        """The host's certificate, replaced when it is renewed."""
        return self.folder / CERTIFICATE

    @property
    def authority_path(self) -> Path:
        """The certificate of the engine's authority for hosts."""
        return self.folder / AUTHORITY

    def find(self) -> HostRegistration | None:
        """Return the registration of this machine, or None if it has not joined an engine. Raises CertificateError if the record
        is damaged."""
        try:
            fields = json.loads((self.folder / RECORD).read_text())
            return HostRegistration(str(fields["id"]), str(fields["name"]), str(fields["engine"]), int(fields["port"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CertificateError(
                f"Could not read {self.folder / RECORD}: {error}. Delete the folder and join again."
            ) from error

    def get(self) -> HostRegistration:
        """Return the registration of this machine. Raises NotFoundError if it has not joined an engine."""
        found = self.find()
        if found is None:
            raise NotFoundError(
                f"This machine has not joined an engine: there is nothing in {self.folder}. "
                "Create a token with `sandyard host token` on the engine's machine and join with `sandyard host join TOKEN`."
            )
        return found

    def prepare_certificate_request(self) -> str:
        """Return a certificate request for the host's key, which is created first if there is none. The key never leaves
        this machine. Blocks; raises CertificateError."""
        with lock_folder(self.folder):
            key = files.read_key(self.folder) or files.create_key(self.folder)
        return make_certificate_request(key)

    def load_key(self) -> Key:
        """Return the host's key. Blocks; raises CertificateError."""
        key = files.read_key(self.folder)
        if key is None:
            raise CertificateError(f"The key {self.key_path} is missing. Join again with `sandyard host join`.")
        return key

    def store(self, registration: HostRegistration, response: JoinResponse) -> None:
        """Store the response of the engine. The record is written last, so that after a crash the host has either joined or
        not. Blocks; raises CertificateError."""
        _check_owner(response, self.load_key(), registration.id)
        files.write(self.authority_path, response.authority, 0o644)
        files.write(self.certificate_path, response.certificate, 0o644)
        fields = {
            "id": registration.id,
            "name": registration.name,
            "engine": registration.engine,
            "port": registration.port,
        }
        files.write(self.folder / RECORD, json.dumps(fields).encode(), 0o644)

    def store_certificate(self, response: JoinResponse) -> None:
        """Replace the certificate with a renewed one. Blocks; raises CertificateError."""
        _check_owner(response, self.load_key(), self.get().id)
        files.write(self.certificate_path, response.certificate, 0o644)

    def read_expiry(self) -> float:
        """Return when the certificate expires. Blocks; raises CertificateError."""
        return _read_certificate(self._read(self.certificate_path)).not_valid_after_utc.timestamp()

    def remove(self) -> None:
        """Remove the record, the certificate and the key. Idempotent."""
        for path in (self.folder / RECORD, self.certificate_path, self.authority_path, self.key_path):
            path.unlink(missing_ok=True)

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise CertificateError(f"Could not read {path}: {error.strerror}. Join again.") from error


class HostServerTls:
    """The TLS context of a host service. It presents the host's certificate, which is loaded again when it was renewed, and accepts
    only the engine."""

    def __init__(self, identity: HostIdentity) -> None:
        """Load the certificate. Blocks; raises CertificateError."""
        self._identity = identity
        self._version = self._get_version()
        self.context = self._load()
        self._current = self.context  # with the newest certificate: `context` hands each connection over to it
        self._checked_at = time.monotonic()
        self.context.sni_callback = self._use_current

    def _use_current(self, connection: ssl.SSLObject, name: str | None, _: object) -> None:
        now = time.monotonic()
        if now - self._checked_at > CHECK_INTERVAL_S:
            self._checked_at = now
            self.check_files()
        if self._current is not self.context:
            connection.context = self._current

    def check_files(self) -> None:
        """Load the certificate if it was renewed."""
        version = self._get_version()
        if version != self._version:
            self._current, self._version = self._load(), version

    def _get_version(self) -> tuple[int, int]:
        """Return what changes when the certificate file is replaced: its inode and its time."""
        try:
            status = self._identity.certificate_path.stat()
        except OSError as error:
            raise CertificateError(f"Could not read {self._identity.certificate_path}: {error.strerror}.") from error
        return status.st_ino, status.st_mtime_ns

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self._identity.certificate_path, self._identity.key_path)
            context.load_verify_locations(self._identity.authority_path)
        except (OSError, ssl.SSLError) as error:
            raise CertificateError(
                f"Could not use the certificate in {self._identity.folder}: {error}. Join again with `sandyard host join`."
            ) from error
        return context


def make_certificate_request(key: Key) -> str:
    """Return a certificate request (PEM) that proves possession of this key. The engine chooses the names in the certificate."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Sandyard host")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def _check_owner(response: JoinResponse, key: Key, host_id: str) -> None:
    """Raise ConflictError if the certificate is not for this key and host."""
    certificate = _read_certificate(response.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if certificate.public_key() != key.public_key() or names.get_values_for_type(x509.DNSName) != [host_id]:
        raise ConflictError("The engine sent a certificate for another host. Try again.")


def _read_certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise CertificateError("The host's certificate is damaged. Join again with `sandyard host join`.") from error
