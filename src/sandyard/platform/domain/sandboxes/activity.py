"""Track the use of sandboxes in memory, so that a use costs nothing. Uses are written to the database periodically."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sandyard.kit.clock import Clock


@dataclass(slots=True)
class _Use:
    last: float
    users: int = 0
    written: float = 0.0


class Activity:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._uses: dict[str, _Use] = {}

    @contextlib.contextmanager
    def using(self, sandbox_id: str) -> Iterator[None]:
        """Mark the sandbox as in use until the context ends."""
        use = self._uses.setdefault(sandbox_id, _Use(self._clock.now()))
        use.users += 1
        use.last = self._clock.now()
        try:
            yield
        finally:
            use.users -= 1
            use.last = self._clock.now()

    def touch(self, sandbox_id: str) -> None:
        self._uses.setdefault(sandbox_id, _Use(0.0)).last = self._clock.now()

    def load(self, sandbox_id: str, used_at: datetime | None) -> None:
        """Record the last use according to the database, for a sandbox that this process has not seen yet."""
        if sandbox_id not in self._uses:
            moment = used_at.timestamp() if used_at else self._clock.now()
            self._uses[sandbox_id] = _Use(moment, written=moment)

    def forget(self, sandbox_id: str) -> None:
        self._uses.pop(sandbox_id, None)

    def idle_for(self, sandbox_id: str) -> float:
        """Return the seconds since the last use. 0 while the sandbox is in use or unknown."""
        use = self._uses.get(sandbox_id)
        return 0.0 if use is None or use.users else max(0.0, self._clock.now() - use.last)

    def take_unwritten(self) -> dict[str, datetime]:
        """Return the uses that are not in the database yet, and mark them as written."""
        now, news = self._clock.now(), {}
        for sandbox_id, use in self._uses.items():
            last = now if use.users else use.last
            if last > use.written:
                use.written = last
                news[sandbox_id] = datetime.fromtimestamp(0, UTC) + timedelta(seconds=last)
        return news
