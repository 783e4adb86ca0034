from __future__ import annotations

from enum import StrEnum

from sandyard.kit.text import storable, storable_json

GAP = "\N{REPLACEMENT CHARACTER}"


class Colour(StrEnum):
    RED = "red"


def test_what_cannot_be_kept_is_replaced() -> None:
    assert storable("a\0b\ud800c\udfff") == f"a{GAP}b{GAP}c{GAP}"
    assert storable("ä 🐙\n\t\x1b") == "ä 🐙\n\t\x1b"


def test_everywhere_in_a_value() -> None:
    value = {"a\0": ["\udc80", ("x", 1, None, True)], "b": {"c": "\0"}, "d": Colour.RED}
    assert storable_json(value) == {f"a{GAP}": [GAP, ["x", 1, None, True]], "b": {"c": GAP}, "d": "red"}
