"""What goes wrong with a forge, ordered by a test. Every order is bounded: it is used up, or runs out of time.

    faults.answer(502, times=2, on="push")     the next two pushes are answered so
    faults.cut("push", after=1000)             the connection ends in the middle of a push; nothing has arrived
    faults.cut_answer()                        the push has arrived, its answer does not
    faults.cut("fetch", after=1000)            the connection ends in the middle of a fetch
    faults.slow(2, on="refs")                  the answer takes two seconds longer
    faults.before_push(act)                    somebody is quicker, between the look at the branches and the push
    gate = faults.hold("push", after=1000)     it stops there until gate.release() or gate.cut(); gate.wait(): it has come so far

`on` is "git" (any request of git), "refs" (which branches are there), "fetch", "push", or "api"; "api" takes `path`, a part
of the address it is about, and `method`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

On = Literal["git", "refs", "fetch", "push", "api"]
How = Literal["answer", "cut", "cut_answer", "slow", "before", "hold"]
HELD_SECONDS = 60.0
"""What nobody lets go by then goes on by itself."""


class Gate:
    """A request that waits in the middle of what it does."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()
        self.is_cut = False

    def wait(self, timeout_s: float = 60.0) -> None:
        """Until a request has come to the gate. Raises TimeoutError."""
        if not self._reached.wait(timeout_s):
            raise TimeoutError(f"no request came to the gate within {timeout_s} s")

    @property
    def reached(self) -> bool:
        return self._reached.is_set()

    def release(self) -> None:
        """Idempotent."""
        self._open.set()

    def cut(self) -> None:
        """It goes no further: the connection ends there."""
        self.is_cut = True
        self._open.set()

    def hold(self) -> None:
        """Called by the request."""
        self._reached.set()
        self._open.wait(HELD_SECONDS)


@dataclass
class Fault:
    how: How
    on: On
    times: int
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    after: int = 0
    seconds: float = 0.0
    act: Callable[[], object] | None = None
    gate: Gate | None = None
    path: str = ""
    method: str = ""

    def about(self, what: On, method: str, path: str) -> bool:
        right = self.on == what or (self.on == "git" and what != "api")
        return right and self.path in path and self.method in ("", method)


class Faults:
    """Orders, taken by the requests in the order in which they come. Safe between threads."""

    def __init__(self) -> None:
        self._orders: list[Fault] = []
        self._lock = threading.Lock()

    def answer(
        self,
        status: int,
        *,
        times: int = 1,
        on: On = "git",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        path: str = "",
        method: str = "",
    ) -> None:
        fault = Fault("answer", on, times, status, headers or {}, body, path=path, method=method)
        self._order(fault)

    def cut(self, on: On, *, after: int = 0, times: int = 1, path: str = "", method: str = "") -> None:
        """After so many bytes: of what is sent by a push, of what is answered to anything else."""
        self._order(Fault("cut", on, times, after=after, path=path, method=method))

    def cut_answer(self, *, on: On = "push", times: int = 1, path: str = "", method: str = "") -> None:
        """What was asked for is done, but who asked is not told."""
        self._order(Fault("cut_answer", on, times, path=path, method=method))

    def slow(self, seconds: float, *, on: On = "git", times: int = 1, path: str = "") -> None:
        self._order(Fault("slow", on, times, seconds=seconds, path=path))

    def before_push(self, act: Callable[[], object], *, times: int = 1) -> None:
        """`act` runs when a push has been told the branches, and before the push is taken."""
        self._order(Fault("before", "push", times, act=act))

    def hold(self, on: On, *, after: int = 0, path: str = "", method: str = "") -> Gate:
        """After so many bytes, as with `cut`."""
        gate = Gate()
        self._order(Fault("hold", on, 1, after=after, gate=gate, path=path, method=method))
        return gate

    def clear(self) -> None:
        """What was not used up. Nobody is held any longer."""
        with self._lock:
            orders, self._orders = self._orders, []
        for order in orders:
            if order.gate is not None:
                order.gate.release()

    @property
    def left(self) -> int:
        """How many orders have not been used up."""
        with self._lock:
            return sum(order.times for order in self._orders)

    def take(self, how: How, what: On, method: str = "", path: str = "") -> Fault | None:
        """The first order of that kind about this request, one less of it."""
        with self._lock:
            for order in self._orders:
                if order.how == how and order.about(what, method, path):
                    order.times -= 1
                    if order.times == 0:
                        self._orders.remove(order)
                    return order
        return None

    def _order(self, fault: Fault) -> None:
        with self._lock:
            self._orders.append(fault)
