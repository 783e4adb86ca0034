from __future__ import annotations

import json
import random
from typing import Any

import pytest

from sandyard.kit import bounded_json
from sandyard.kit.bounded_json import TooManyValuesError, ValueCounter, count_values, parse

HARD = ['"', "\\", '\\"', '\\\\"', ",", "[{", "\n", "ü,", "", "\\u0022,"]


def made(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(6 if depth < 4 else 4)
    if kind == 0:
        return dice.choice([0, 1.5, True, None])
    if kind < 4:
        return "".join(dice.choices(HARD, k=dice.randrange(6)))
    values = [made(dice, depth + 1) for _ in range(dice.randrange(5))]
    return values if kind == 4 else {f"{number}{dice.choice(HARD)}": one for number, one in enumerate(values)}


def values_of(told: Any) -> int:
    """What a counter counts: a bracket, and a comma before every value but the first."""
    if not isinstance(told, list | dict):
        return 0
    inside = list(told.values()) if isinstance(told, dict) else told
    return 1 + max(0, len(inside) - 1) + sum(map(values_of, inside))


@pytest.mark.parametrize("seed", range(50))
def test_values_are_counted_and_what_is_in_strings_is_not(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(bounded_json, "_PIECE", dice.choice([1, 2, 3, 7, 1000]))
    told = [made(dice) for _ in range(10)]
    text, count = json.dumps(told, ensure_ascii=dice.random() < 0.5).encode(), values_of(told)
    counter, at = ValueCounter(count), 0
    while at < len(text):
        size = dice.randrange(1, 20)
        counter.feed(text[at : at + size])
        at += size
    assert counter.values == count
    assert parse(text, largest=len(text), values=count) == told
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
def test_nothing_is_parsed_of_what_has_too_many_values(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(*_: object, **__: object) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(json, "loads", loads)
    with pytest.raises(ValueError, match="the JSON"):
        parse(text, largest=len(text), values=1000)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xc3", b'"' * 10_000, b"[" * 10_000 + b"]" * 10_000, "\ud800", "{'a': 1}"]
)
def test_what_is_not_json_is_a_value_error(text: bytes | str) -> None:
    with pytest.raises(ValueError):
        parse(text, largest=1 << 20, values=100_000)
