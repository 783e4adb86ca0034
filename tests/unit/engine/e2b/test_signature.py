from __future__ import annotations

import time

import pytest
from e2b.sandbox.signature import get_signature

from sandyard.engine.e2b.dataplane.signature import GUESSES_BURST, SignatureIndex, sign, verify
from sandyard.engine.e2b.dataplane.target import SignedFile
from sandyard.kit.errors import FullError, UnauthenticatedError
from sandyard.kit.secret import Secret


def signed(token: str = "t", path: str = "a/ü b", expires_in: int | None = None, user: str | None = None) -> SignedFile:
    """As the SDK itself signs."""
    made = get_signature(path, "read", user, token, expires_in)
    expires = None if made["expiration"] is None else str(made["expiration"])
    return SignedFile(path, "read", user or "", made["signature"], expires)


@pytest.mark.parametrize("expires_in", [None, 60])
@pytest.mark.parametrize("user", [None, "root"])
def test_the_sdk_s_signature_is_ours(expires_in: int | None, user: str | None) -> None:
    file = signed(expires_in=expires_in, user=user)
    assert sign(file, "t") == file.signature
    verify(file, Secret("t"))


@pytest.mark.parametrize("change", [{"path": "other"}, {"operation": "write"}, {"user": "root"}, {"expires": "99"}])
def test_what_was_signed_cannot_be_changed(change: dict[str, str]) -> None:
    file = signed()
    fields = {name: getattr(file, name) for name in ("path", "operation", "user", "signature", "expires")}
    with pytest.raises(UnauthenticatedError, match="invalid signature"):
        verify(SignedFile(**{**fields, **change}), Secret("t"))


def test_expiry_is_told_only_to_who_signed() -> None:
    with pytest.raises(UnauthenticatedError, match="already expired"):
        verify(signed(expires_in=-10), Secret("t"))
    with pytest.raises(UnauthenticatedError, match="invalid signature"):
        verify(signed(expires_in=-10), Secret("other"))


async def test_a_lost_sandbox_is_found_again() -> None:
    index = SignatureIndex()
    tokens = [(f"i{number}", Secret(f"token{number}")) for number in range(5000)]
    for number in (0, 4999):
        assert await index.find(signed(f"token{number}"), "client", iter(tokens)) == f"i{number}"
        assert await index.find(signed(f"token{number}"), "client", iter([])) == f"i{number}", "and remembered"
    index.forget("i4999")
    with pytest.raises(UnauthenticatedError):
        await index.find(signed("token4999"), "client", iter([]))


async def test_guessing_is_stopped_for_the_guesser_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    index = SignatureIndex()
    tokens = [("i", Secret("right"))]
    for _ in range(int(GUESSES_BURST)):
        with pytest.raises(UnauthenticatedError):
            await index.find(signed("wrong"), "guesser", iter(tokens))
    with pytest.raises(FullError):
        await index.find(signed("right"), "guesser", iter(tokens))
    assert await index.find(signed("right"), "somebody else", iter(tokens)) == "i"
    now += 1
    assert await index.find(signed("right", "other"), "guesser", iter(tokens)) == "i"
