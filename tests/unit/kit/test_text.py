from __future__ import annotations

from enum import StrEnum

from sandyard.kit.text import append_quote, make_json_storable, make_storable

GAP = "\N{REPLACEMENT CHARACTER}"


class Colour(StrEnum):
    RED = "red"


def test_characters_that_cannot_be_stored_are_replaced() -> None:
    assert make_storable("a\0b\ud800c\udfff") == f"a{GAP}b{GAP}c{GAP}"
    assert make_storable("ä 🐙\n\t\x1b") == "ä 🐙\n\t\x1b"


def test_strings_in_nested_values_are_replaced() -> None:
    value = {"a\0": ["\udc80", ("x", 1, None, True)], "b": {"c": "\0"}, "d": Colour.RED}
    assert make_json_storable(value) == {f"a{GAP}": [GAP, ["x", 1, None, True]], "b": {"c": GAP}, "d": "red"}


def test_words_of_another_program_are_quoted() -> None:
    assert append_quote("It failed.", "Not known here.") == "It failed. It said: “Not known here.”"
    assert append_quote("It failed.", "") == "It failed."
