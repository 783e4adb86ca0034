"""Declare hosts lost if they have not answered for a long time, so that their sandboxes continue on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sandyard.engine.drivers.cluster.model import LOCAL_HOST_ID, HostState, HostStatus
from sandyard.kit.clock import Clock
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

CHECK_S = 2.0


class LossWatch:
    """Calls `declare_lost` with the id of each host that has answered nothing for `after_s` seconds.

    If there are several hosts and none answers, none is declared lost: the engine's own network is then the
    likely cause. A host that answers, even if it refuses this engine, is not lost.
    """

    def __init__(
        self,
        get_statuses: Callable[[], Sequence[HostStatus]],
        declare_lost: Callable[[str], object],
        clock: Clock,
        after_s: float,
    ) -> None:
        self._get_statuses = get_statuses
        self._declare_lost = declare_lost
        self._clock = clock
        self._after_s = after_s

    async def run(self) -> None:
        while True:
            await self._clock.sleep(min(CHECK_S, self._after_s / 2))
            self.check()

    def check(self) -> None:
        others = [status for status in self._get_statuses() if status.record.id != LOCAL_HOST_ID]
        if len(others) > 1 and all(status.state is not HostState.READY for status in others):
            return
        now = self._clock.now()
        for status in others:
            since = status.silent_since
            if status.record.lost or since is None or now - since < self._after_s:
                continue
            log.warning(
                "host_considered_lost", host=status.record.id, name=status.record.name, silent_s=round(now - since)
            )
            try:
                self._declare_lost(status.record.id)
            except SandyardError as error:  # from the database; the next check tries again
                log.warning("loss_of_host_not_recorded", host=status.record.id, reason=error.message)
