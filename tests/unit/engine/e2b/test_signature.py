from __future__ import annotations

import time

import pytest
from e2b.sandbox.signature import get_signature

from sandyard.engine.e2b.dataplane.signature import GUESSES_BURST, SignatureIndex, sign, verify
from sandyard.engine.e2b.dataplane.target import SignedFile
from sandyard.kit.errors import FullError, UnauthenticatedError
from sandyard.kit.secret import Secret


def sign_with_sdk(
    token: str = "t", path: str = "a/ü b", expires_in: int | None = None, user: str | None = None
) -> SignedFile:
    """Sign a file request with the SDK's own function."""
    result = get_signature(path, "read", user, token, expires_in)
    expires = None if result["expiration"] is None else str(result["expiration"])
    return SignedFile(path, "read", user or "", result["signature"], expires)


@pytest.mark.parametrize("expires_in", [None, 60])
@pytest.mark.parametrize("user", [None, "root"])
def test_our_signature_equals_the_sdks(expires_in: int | None, user: str | None) -> None:
    file = sign_with_sdk(expires_in=expires_in, user=user)
    assert sign(file, "t") == file.signature
    verify(file, Secret("t"))


@pytest.mark.parametrize("change", [{"path": "other"}, {"operation": "write"}, {"user": "root"}, {"expires": "99"}])
def test_a_changed_request_invalidates_the_signature(change: dict[str, str]) -> None:
    file = sign_with_sdk()
    fields = {name: getattr(file, name) for name in ("path", "operation", "user", "signature", "expires")}
    with pytest.raises(UnauthenticatedError, match="invalid signature"):
        verify(SignedFile(**{**fields, **change}), Secret("t"))


def test_expiry_is_reported_only_for_a_valid_signature() -> None:
    with pytest.raises(UnauthenticatedError, match="already expired"):
        verify(sign_with_sdk(expires_in=-10), Secret("t"))
    with pytest.raises(UnauthenticatedError, match="invalid signature"):
        verify(sign_with_sdk(expires_in=-10), Secret("other"))


async def test_a_sandbox_is_found_by_its_signature() -> None:
    index = SignatureIndex()
    tokens = [(f"i{number}", Secret(f"token{number}")) for number in range(5000)]
    for number in (0, 4999):
        assert await index.find(sign_with_sdk(f"token{number}"), "client", iter(tokens)) == f"i{number}"
        assert await index.find(sign_with_sdk(f"token{number}"), "client", iter([])) == f"i{number}", (
            "the match must be cached"
        )
    index.forget("i4999")
    with pytest.raises(UnauthenticatedError):
        await index.find(sign_with_sdk("token4999"), "client", iter([]))


async def test_only_the_client_that_guesses_is_rate_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    index = SignatureIndex()
    tokens = [("i", Secret("right"))]
    for _ in range(int(GUESSES_BURST)):
        with pytest.raises(UnauthenticatedError):
            await index.find(sign_with_sdk("wrong"), "guesser", iter(tokens))
    with pytest.raises(FullError):
        await index.find(sign_with_sdk("right"), "guesser", iter(tokens))
    assert await index.find(sign_with_sdk("right"), "somebody else", iter(tokens)) == "i"
    now += 1
    assert await index.find(sign_with_sdk("right", "other"), "guesser", iter(tokens)) == "i"
