from __future__ import annotations

import pytest

from sandyard.engine.drivers.machine.slots import Slots
from sandyard.kit.errors import FullError


def test_the_smallest_free_slot_is_taken() -> None:
    slots = Slots(10)
    assert [slots.take() for _ in range(4)] == [0, 1, 2, 3]
    slots.release(2)
    slots.release(0)
    slots.release(0)
    assert slots.list_next(3) == [0, 2, 4]
    assert [slots.take() for _ in range(3)] == [0, 2, 4]


def test_a_claimed_slot_is_not_handed_out() -> None:
    slots = Slots(5)
    slots.claim(2)
    slots.claim(0)
    slots.claim(2)
    assert [slots.take() for _ in range(3)] == [1, 3, 4]
    with pytest.raises(FullError, match="slots"):
        slots.take()
    slots.release(2)
    assert slots.take() == 2


def test_the_list_of_next_slots_ends_at_the_limit() -> None:
    slots = Slots(3)
    slots.take()
    assert slots.list_next(10) == [1, 2]
