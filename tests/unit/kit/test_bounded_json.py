from __future__ import annotations

import json
import random
from typing import Any

import pytest

from sandyard.kit import bounded_json
from sandyard.kit.bounded_json import TooManyValuesError, ValueCounter, count_values, parse

TRICKY = ['"', "\\", '\\"', '\\\\"', ",", "[{", "\n", "ü,", "", "\\u0022,"]


def make_random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(6 if depth < 4 else 4)
    if kind == 0:
        return rng.choice([0, 1.5, True, None])
    if kind < 4:
        return "".join(rng.choices(TRICKY, k=rng.randrange(6)))
    values = [make_random_value(rng, depth + 1) for _ in range(rng.randrange(5))]
    return values if kind == 4 else {f"{number}{rng.choice(TRICKY)}": value for number, value in enumerate(values)}


def count_expected(value: Any) -> int:
    """Return the number that ValueCounter should compute: one for each bracket and one for each comma between values."""
    if not isinstance(value, list | dict):
        return 0
    inside = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(inside) - 1) + sum(map(count_expected, inside))


@pytest.mark.parametrize("seed", range(50))
def test_values_are_counted_except_in_strings(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(bounded_json, "PIECE_BYTES", rng.choice([1, 2, 3, 7, 1000]))
    values = [make_random_value(rng) for _ in range(10)]
    text, count = json.dumps(values, ensure_ascii=rng.random() < 0.5).encode(), count_expected(values)
    counter, at = ValueCounter(count), 0
    while at < len(text):
        size = rng.randrange(1, 20)
        counter.feed(text[at : at + size])
        at += size
    assert counter.values == count
    assert parse(text, largest=len(text), values=count) == values
    with pytest.raises(TooManyValuesError):
        count_values(text, count - 1)
    with pytest.raises(ValueError, match="larger than"):
        parse(text, largest=len(text) - 1, values=count)


def test_source_code_in_a_string_is_one_value() -> None:
    text = json.dumps(["a[{,\"'\\" * 100_000])
    assert parse(text, largest=len(text), values=1) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 10_000,
        b"[" + b"[]," * 10_000,
        b'{"a":' * 10_000,
        b"[" + b'"",' * 10_000,
        b'{"\\"":[' + b"0," * 10_000,
        json.dumps(['"', *[[]] * 10_000]).encode("utf-16"),
        json.dumps(['"', *[[]] * 10_000]).encode("utf-32-le"),
        json.dumps(['"', *[[]] * 10_000]).encode("utf-16-be"),
    ],
)
def test_text_with_too_many_values_is_not_parsed(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(*_: object, **__: object) -> None:
        raise AssertionError("the text must not be parsed")

    monkeypatch.setattr(json, "loads", loads)
    with pytest.raises(ValueError, match="the JSON"):
        parse(text, largest=len(text), values=1000)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xc3", b'"' * 10_000, b"[" * 10_000 + b"]" * 10_000, "\ud800", "{'a': 1}"]
)
def test_invalid_json_raises_a_value_error(text: bytes | str) -> None:
    with pytest.raises(ValueError):
        parse(text, largest=1 << 20, values=100_000)
