"""The number of preparations that may run for a user at the same time."""

from __future__ import annotations

import pytest

from sandyard.platform.domain.preparations.user_limit import MAX_WAITING, TooManyPreparationsError, UserLimit


def test_tickets_of_a_user_wait_for_each_other_in_order() -> None:
    limit = UserLimit(2)
    first, second, third, fourth = (limit.enter("ann") for _ in range(4))
    assert [item.must_wait for item in (first, second, third, fourth)] == [False, False, True, True]
    assert not limit.enter("bob").must_wait, "users do not wait for each other"
    third.leave()  # it gave up
    first.leave()
    first.leave()
    assert not fourth.must_wait
    assert limit.enter("ann").must_wait


def test_the_number_of_waiting_tickets_is_limited() -> None:
    limit = UserLimit(1)
    tickets = [limit.enter("ann") for _ in range(1 + MAX_WAITING)]
    with pytest.raises(TooManyPreparationsError, match="50 preparations of this user"):
        limit.enter("ann")
    limit.enter("bob")
    limit.enter("ann", max_waiting=None).leave()
    tickets[0].leave()
    limit.enter("ann")


def test_a_ticket_may_be_refused_instead_of_waiting() -> None:
    limit = UserLimit(1)
    ticket = limit.enter("ann", max_waiting=0)
    with pytest.raises(TooManyPreparationsError):
        limit.enter("ann", max_waiting=0)
    ticket.leave()
    limit.enter("ann", max_waiting=0)
