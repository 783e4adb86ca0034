"""Handles and measurements as they arrive from hosts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandyard.engine.contract import Handle, Stats
from sandyard.engine.drivers.cluster import codec


def receive(sandbox_id: str) -> Any:
    handle = Handle(sandbox_id, "namespace", {"life": {"pid": 7}, "layers": ["tpl:base/1"], "uid": 100_000})
    return json.loads(json.dumps({"handle": codec.encode_handle(handle), "life": 3}))


def test_handles_of_many_sandboxes_share_their_names() -> None:
    """Otherwise each of them would take a kilobyte more."""
    first, second = (codec.decode_started(receive(name), name)[0] for name in ("s1", "s2"))
    assert first == Handle("s1", "namespace", {"life": {"pid": 7}, "layers": ["tpl:base/1"], "uid": 100_000})
    assert first.driver is second.driver
    for one, other in ((first.data, second.data), (first.data["life"], second.data["life"])):
        assert all(a is b for a, b in zip(one, other, strict=True))
    assert first.data["layers"][0] is second.data["layers"][0]


def test_a_handle_of_another_sandbox_is_refused() -> None:
    with pytest.raises(ValueError, match="another sandbox"):
        codec.decode_started(receive("s2"), "s1")


def test_negative_measurements_are_refused() -> None:
    """The engine reserves memory and disk space for what sandboxes use."""
    plain = dict(codec.encode_stats(Stats(1.5, 2, 3, 4, 5, 6, 7)))
    assert codec.decode_stats(plain) == Stats(1.5, 2, 3, 4, 5, 6, 7)
    for name in plain:
        with pytest.raises(ValueError, match="negative"):
            codec.decode_stats({**plain, name: -1})
