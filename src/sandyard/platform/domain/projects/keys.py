"""Private keys that people hand over: read with care before they are stored, and named by their fingerprint afterwards."""

from __future__ import annotations

import base64
import hashlib
import re

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.secret import Secret

MAX_KEY = 16 * 1024
_RSA_BITS = 2048
_BEGIN = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----")
_PUBLIC = re.compile(r"(ssh-|ecdsa-|sk-)[a-z0-9@.-]+ AAAA")
_OPENSSH = "OPENSSH PRIVATE KEY"
SshKey = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey


def ssh_key(given: Secret) -> tuple[Secret, str]:
    """The key in OpenSSH's own form, which every ssh reads, and its type with its fingerprint as `ssh-keygen -l` says it.

    InvalidInputError says what is wrong with it, and quotes nothing of it. Blocks for some milliseconds.
    """
    key = _loaded(given.reveal(), "The SSH key")
    if not isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey):
        raise InvalidInputError("The SSH key is of a kind that servers refuse. Make one with: ssh-keygen -t ed25519")
    _check_size(key, "The SSH key")
    clean = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    kind, blob = (
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).split()
    )
    return Secret(clean.decode()), f"{kind.decode()} SHA256:{_digest(base64.b64decode(blob)).rstrip('=')}"


def app_key(given: Secret) -> tuple[Secret, str]:
    """A GitHub App's key as PEM, and its fingerprint as GitHub's page shows it. Otherwise like `ssh_key`."""
    key = _loaded(given.reveal(), "The app's private key")
    if not isinstance(key, RSAPrivateKey):
        raise InvalidInputError(
            "The app's private key is not an RSA key. Use the .pem file that GitHub made for the app."
        )
    _check_size(key, "The app's private key")
    clean = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return Secret(clean.decode()), f"SHA256:{_digest(public)}"


def _loaded(text: str, what: str) -> object:
    if len(text) > MAX_KEY:
        raise InvalidInputError(f"{what} is longer than {MAX_KEY // 1024} KiB; no key is.")
    text = text.strip()
    if text.startswith("PuTTY-User-Key-File"):
        raise InvalidInputError(f"{what} is in PuTTY's format. Export it as an OpenSSH key, and give that.")
    if _PUBLIC.match(text):
        raise InvalidInputError(f"{what} is the public half. Give the private one, which begins with -----BEGIN.")
    begin = _BEGIN.match(text)
    if begin is None:
        raise InvalidInputError(f"{what} is not a private key: such a file begins with -----BEGIN … PRIVATE KEY-----.")
    if "PUBLIC" in begin[1] or "CERTIFICATE" in begin[1]:
        raise InvalidInputError(f"{what} is a {begin[1].lower()}. Give the private key.")
    load = serialization.load_ssh_private_key if begin[1] == _OPENSSH else serialization.load_pem_private_key
    try:
        return load((text + "\n").encode(), None)
    except TypeError:
        raise InvalidInputError(
            f"{what} has a passphrase, which nobody could type here. Give one without: ssh-keygen -p -N '' -f FILE"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidInputError(
            f"{what} cannot be read: it is cut off or damaged. Give the whole file, with its first and last line."
        ) from None


def _check_size(key: SshKey, what: str) -> None:
    if isinstance(key, RSAPrivateKey) and key.key_size < _RSA_BITS:
        raise InvalidInputError(f"{what} has {key.key_size} bits, and servers want at least {_RSA_BITS}.")


def _digest(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()
