"""Limit the connections to the engine that one user's operations hold. All users share the pool of `e2b/transport.py`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from sandyard.kit.errors import SandyardError

MAX_CONNECTIONS_PER_USER = 256


class TooManyOperationsError(SandyardError):
    """The user has too many commands, terminals, SSH connections and file operations in progress."""

    code, status = "too_many_operations", 429

    def __init__(self) -> None:
        super().__init__(
            f"You have {MAX_CONNECTIONS_PER_USER} running commands, open terminals, SSH connections and file operations "
            "together, which is the limit. Kill a command, close a terminal or a connection, or wait until one of them has ended."
        )


class UserConnections:
    """Counts what each user has running, in this process. Commands of paused sandboxes count, because they continue with them."""

    def __init__(self) -> None:
        self.open_connections: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, user_id: str) -> Iterator[None]:
        """Count a connection of the user until the context ends. Raises TooManyOperationsError at the limit."""
        if self.open_connections[user_id] >= MAX_CONNECTIONS_PER_USER:
            raise TooManyOperationsError
        with self.hold_unlimited(user_id):
            yield

    @contextlib.contextmanager
    def hold_unlimited(self, user_id: str) -> Iterator[None]:
        """Count a connection of an operation that was started before, by an earlier process."""
        self.open_connections[user_id] += 1
        try:
            yield
        finally:
            self.open_connections[user_id] -= 1
            if not self.open_connections[user_id]:
                del self.open_connections[user_id]
