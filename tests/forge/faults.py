"""Faults of a forge, requested by a test. Every fault is limited: in number, or in time.

    faults.answer(502, times=2, on="push")     the next two pushes get this answer
    faults.cut("push", after=1000)             the connection ends during a push; nothing has arrived
    faults.cut_answer()                        the push has arrived, its answer does not
    faults.cut("fetch", after=1000)            the connection ends during a fetch
    faults.slow(2, on="refs")                  the answer takes two seconds longer
    faults.before_push(act)                    `act` runs after git has read the branches and before the push
    gate = faults.hold("push", after=1000)     it stops there until gate.release() or gate.cut(); gate.wait() waits for it

`on` is "git" (any request of git), "refs" (the list of branches), "fetch", "push", or "api"; "api" takes `path`, a part of the URL,
and `method`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

On = Literal["git", "refs", "fetch", "push", "api"]
How = Literal["answer", "cut", "cut_answer", "slow", "before", "hold"]
HOLD_SECONDS = 60.0
"""A held request continues after this time."""


class Gate:
    """A request that is held in progress."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()
        self.is_cut = False

    def wait(self, timeout_s: float = 60.0) -> None:
        """Wait until a request has reached the gate. Raises TimeoutError."""
        if not self._reached.wait(timeout_s):
            raise TimeoutError(f"no request reached the gate within {timeout_s} s")

    @property
    def reached(self) -> bool:
        return self._reached.is_set()

    def release(self) -> None:
        """Let the request continue. Idempotent."""
        self._open.set()

    def cut(self) -> None:
        """End the connection at the gate."""
        self.is_cut = True
        self._open.set()

    def hold(self) -> None:
        """Hold the request until `release`. Called by the request."""
        self._reached.set()
        self._open.wait(HOLD_SECONDS)


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

    def matches(self, what: On, method: str, path: str) -> bool:
        same_target = self.on == what or (self.on == "git" and what != "api")
        return same_target and self.path in path and self.method in ("", method)


class Faults:
    """Requested faults, used up by requests in the order of their arrival. Thread-safe."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
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
        self._add(fault)

    def cut(self, on: On, *, after: int = 0, times: int = 1, path: str = "", method: str = "") -> None:
        """Cut the connection after so many bytes: of the request for a push, of the answer otherwise."""
        self._add(Fault("cut", on, times, after=after, path=path, method=method))

    def cut_answer(self, *, on: On = "push", times: int = 1, path: str = "", method: str = "") -> None:
        """Carry out the request, but lose its answer."""
        self._add(Fault("cut_answer", on, times, path=path, method=method))

    def slow(self, seconds: float, *, on: On = "git", times: int = 1, path: str = "") -> None:
        self._add(Fault("slow", on, times, seconds=seconds, path=path))

    def before_push(self, act: Callable[[], object], *, times: int = 1) -> None:
        """Run `act` after a push has read the branches and before it is accepted."""
        self._add(Fault("before", "push", times, act=act))

    def hold(self, on: On, *, after: int = 0, path: str = "", method: str = "") -> Gate:
        """Hold a request after so many bytes, counted as for `cut`."""
        gate = Gate()
        self._add(Fault("hold", on, 1, after=after, gate=gate, path=path, method=method))
        return gate

    def clear(self) -> None:
        """Remove all remaining faults, and release held requests."""
        with self._lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            if fault.gate is not None:
                fault.gate.release()

    @property
    def left(self) -> int:
        """The number of faults that are not used up."""
        with self._lock:
            return sum(fault.times for fault in self._faults)

    def take(self, how: How, what: On, method: str = "", path: str = "") -> Fault | None:
        """Use up and return the first fault of this kind that matches the request."""
        with self._lock:
            for fault in self._faults:
                if fault.how == how and fault.matches(what, method, path):
                    fault.times -= 1
                    if fault.times == 0:
                        self._faults.remove(fault)
                    return fault
        return None

    def _add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)
