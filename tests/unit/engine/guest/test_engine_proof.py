from __future__ import annotations

import os
import time

import pytest

from sandyard.engine.guest.engine_proof import PROOF_BYTES, SECRET_BYTES, ProofChecker, make_proof

SECRET = os.urandom(SECRET_BYTES)


def test_a_proof_is_valid_once_and_for_its_port() -> None:
    checker = ProofChecker(SECRET)
    proof = make_proof(SECRET, 1000)
    assert len(proof) == PROOF_BYTES
    assert not checker.accept(proof, 1001)
    assert checker.accept(proof, 1000)
    assert not checker.accept(proof, 1000)
    assert checker.accept(make_proof(SECRET, 1000), 1000)


@pytest.mark.parametrize("change", [lambda proof: b"", lambda proof: proof[:-1], lambda proof: b"x" + proof[1:]])
def test_anything_else_is_refused(change: object) -> None:
    assert callable(change)
    assert not ProofChecker(SECRET).accept(change(make_proof(SECRET, 1)), 1)
    assert not ProofChecker(SECRET).accept(make_proof(os.urandom(SECRET_BYTES), 1), 1)


def test_a_proof_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    checker, now = ProofChecker(SECRET), time.time()
    used, unused = make_proof(SECRET, 1), make_proof(SECRET, 1)
    assert checker.accept(used, 1)
    for moment in (now + 1000, now - 1000):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda moment=moment: moment)
            assert not checker.accept(unused, 1)
            assert not checker.accept(used, 1)
            assert checker.accept(make_proof(SECRET, 1), 1)
