"""Sandboxes get certificates for few new host names at once."""

from __future__ import annotations

from sandyard.engine.drivers.machine.net.proxy.listener import NameLimit


def test_a_sandbox_cannot_have_certificates_issued_without_end() -> None:
    names = NameLimit()
    taken = [names.take(f"{number}.example.com") for number in range(1000)]
    assert all(taken[:100])
    assert sum(taken) < 150
    assert names.take("99.example.com"), "what it has is not limited"
