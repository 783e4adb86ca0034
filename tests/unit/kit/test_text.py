from __future__ import annotations

from enum import StrEnum

from sandyard.kit.text import append_quote, storable, storable_json

GAP = "\N{REPLACEMENT CHARACTER}"


class Colour(StrEnum):
    RED = "red"


def test_characters_that_cannot_be_stored_are_replaced() -> None:
    assert storable("a\0b\ud800c\udfff") == f"a{GAP}b{GAP}c{GAP}"
    assert storable("ä 🐙\n\t\x1b") == "ä 🐙\n\t\x1b"


def test_strings_in_nested_values_are_replaced() -> None:
    value = {"a\0": ["\udc80", ("x", 1, None, True)], "b": {"c": "\0"}, "d": Colour.RED}
    assert storable_json(value) == {f"a{GAP}": [GAP, ["x", 1, None, True]], "b": {"c": GAP}, "d": "red"}


def test_words_of_another_program_are_quoted() -> None:
    assert append_quote("It failed.", "Not known here.") == "It failed. It said: “Not known here.”"
    assert append_quote("It failed.", "") == "It failed."
