"""How much is parsed in one turn."""

from __future__ import annotations

import pytest

from sandyard.kit.pacing import PacedInput


def count_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of parts (chunks, frames) of each turn that any connection takes from now on."""
    turns: list[int] = []
    take_turn = PacedInput.take_turn

    def counted(self: PacedInput) -> bool:
        parse = self.parse
        turns.append(0)

        def parsed(data: bytes) -> int:
            parts = parse(data)
            turns[-1] += parts
            return parts

        self.parse = parsed
        try:
            return take_turn(self)
        finally:
            self.parse = parse

    monkeypatch.setattr(PacedInput, "take_turn", counted)
    return turns
