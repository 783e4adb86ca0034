"""Numbered slots for running sandboxes. The smallest free one is taken, so that what belongs to it (user namespace,
network) is reused."""

from __future__ import annotations

import heapq

from sandyard.kit.errors import FullError


class Slots:
    """Numbers below `count`. A used slot belongs to a running sandbox, a kept one to a suspended sandbox."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._next = 0  # this slot and all above it have never been used
        self._free: list[int] = []  # below `_next`
        self._used: set[int] = set()
        self._kept: set[int] = set()

    def claim(self, slot: int) -> None:
        """Mark a specific slot as used, for a sandbox that was found running."""
        while self._next <= slot:
            heapq.heappush(self._free, self._next)
            self._next += 1
        if slot in self._free:
            self._free.remove(slot)
            heapq.heapify(self._free)
        self._used.add(slot)

    def take(self) -> int:
        """Return a free slot, which is used from now on. Raises FullError."""
        if self._free:
            slot = heapq.heappop(self._free)
        elif self._next < self.count:
            slot = self._next
            self._next += 1
        else:
            raise FullError(f"The machine is full (slots): {self.count} sandboxes are running. Kill one.")
        self._used.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """Release a slot. Idempotent. A kept slot is then unused, but not free."""
        if slot in self._used:
            self._used.discard(slot)
            if slot not in self._kept:
                heapq.heappush(self._free, slot)

    def keep(self, slot: int) -> None:
        """Reserve this slot for a suspended sandbox, which needs it again."""
        if slot not in self._used:
            self.claim(slot)
            self._used.discard(slot)
        self._kept.add(slot)

    def reuse_kept(self, slot: int) -> None:
        """Stop keeping a slot whose sandbox was restored into it. Call `claim` first."""
        self._kept.discard(slot)

    def release_kept(self, slot: int) -> None:
        """Release a kept slot whose sandbox will not be restored. Idempotent."""
        if slot in self._kept:
            self._kept.discard(slot)
            if slot not in self._used:
                heapq.heappush(self._free, slot)

    @property
    def kept(self) -> frozenset[int]:
        return frozenset(self._kept)

    def list_next(self, count: int) -> list[int]:
        """Return the slots that will be taken next."""
        free = heapq.nsmallest(count, self._free)
        more = range(self._next, min(self._next + count - len(free), self.count))
        return [*free, *more]

    @property
    def used(self) -> frozenset[int]:
        return frozenset(self._used)
