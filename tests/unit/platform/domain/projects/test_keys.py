from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.secret import Secret
from sandyard.platform.domain.projects.keys import parse_ssh_key


def make_key(curve: ec.EllipticCurve) -> Secret:
    key = ec.generate_private_key(curve)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return Secret(pem.decode())


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_keys_on_the_curves_of_openssh_are_accepted(curve: ec.EllipticCurve) -> None:
    key, fingerprint = parse_ssh_key(make_key(curve))
    assert key.reveal().startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert fingerprint.startswith("ecdsa-sha2-nistp")


@pytest.mark.parametrize("curve", [ec.SECP256K1(), ec.SECP224R1()], ids=lambda curve: curve.name)
def test_keys_on_other_curves_are_rejected(curve: ec.EllipticCurve) -> None:
    with pytest.raises(InvalidInputError, match="a type that servers reject"):
        parse_ssh_key(make_key(curve))
