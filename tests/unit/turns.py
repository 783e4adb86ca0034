"""Count how much is parsed in one turn."""

from __future__ import annotations

import pytest

from sandyard.kit.pacing import PacedInput


def count_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of parts (chunks, frames) of each turn that any connection takes from now on."""
    turns: list[int] = []
    take_turn = PacedInput.take_turn

    def count_turn(self: PacedInput) -> bool:
        parse = self.parse
        turns.append(0)

        def parse_and_count(data: bytes) -> int:
            parts = parse(data)
            turns[-1] += parts
            return parts

        self.parse = parse_and_count
        try:
            return take_turn(self)
        finally:
            self.parse = parse

    monkeypatch.setattr(PacedInput, "take_turn", count_turn)
    return turns
