"""The two files of an authority: its key and its certificate.

The key is written first, and each file is written atomically. After a crash there is nothing, only a key (its
certificate is then created again), or both.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandyard.kit.errors import SandyardError

Key = ec.EllipticCurvePrivateKey
KEY, CERTIFICATE = "key.pem", "ca.pem"


class CertificateError(SandyardError):
    """A certificate or its key cannot be used."""

    code = "certificate"


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create the folder with access for its owner only, and lock it against other processes while the block runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CertificateError(f"Could not create the folder {folder} for certificates: {error.strerror}.") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def read_key(folder: Path) -> Key | None:
    """Return the key, or None if there is none. An unreadable key is never replaced, because that would silently cut
    off clients that trust it."""
    path = folder / KEY
    data = _read(path)
    if data is None:
        return None
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(_describe_unreadable(path, "a valid key")) from error
    if not isinstance(key, Key):
        raise CertificateError(_describe_unreadable(path, "a key of the expected type"))
    if path.stat().st_mode & 0o077:
        raise CertificateError(
            f"Other users can read the key {path}. Run `chmod 600` on it, or delete it to create a new one."
        )
    return key


def read_certificate(folder: Path, key: Key) -> x509.Certificate | None:
    """Return the certificate of this key, or None if there is none yet."""
    path = folder / CERTIFICATE
    data = _read(path)
    if data is None:
        return None
    try:
        certificate = x509.load_pem_x509_certificate(data)
    except ValueError as error:
        raise CertificateError(_describe_unreadable(path, "a valid certificate")) from error
    return certificate if certificate.public_key() == key.public_key() else None


def create_key(folder: Path) -> Key:
    key = ec.generate_private_key(ec.SECP256R1())
    write(folder / KEY, encode_key(key), 0o600)
    return key


def encode_key(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write(path: Path, data: bytes, mode: int) -> None:
    """Write a file atomically. It is on disk when this returns."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(data)
            file.flush()
            os.fsync(fd)
        new.replace(path)
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise CertificateError(f"Could not write {path}: {error.strerror}.") from error


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CertificateError(f"Could not read {path}: {error.strerror}.") from error


def _describe_unreadable(path: Path, what: str) -> str:
    return (
        f"{path} does not contain {what}. Restore it from a backup, or delete it to create a new authority that clients "
        "have to trust again."
    )
