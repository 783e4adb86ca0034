"""Tidy all mirrors: one that cannot be tidied does not keep others from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.domain.repositories.mirror import Mirrors

log = get_logger(__name__)
FIRST_PAUSE_S, MAX_PAUSE_S = 1800.0, 86_400.0
"""How long a mirror is left alone after it could not be tidied. Each further failure doubles it."""


@dataclass(frozen=True, slots=True)
class _Pause:
    duration_s: float
    ends_at: float


class MirrorTidying:
    """Tidies mirrors, and removes those of deleted projects. The contents of a mirror can make git fail each time it repacks them."""

    def __init__(self, mirrors: Mirrors, get_time: Callable[[], float] = time.monotonic) -> None:
        self._mirrors = mirrors
        self._get_time = get_time
        self._pauses: dict[str, _Pause] = {}

    async def tidy(self, mirrored: Collection[str], existing: Collection[str]) -> None:
        """Tidy the mirrors of the projects `mirrored`, and remove those of projects that are not among the `existing` ones."""
        for project_id in mirrored:
            if project_id in existing:
                await self._tidy(project_id)
                continue
            self._pauses.pop(project_id, None)
            try:
                await self._mirrors.remove(project_id)
            except (SandyardError, OSError) as error:
                log.warning("mirror_not_removed", project=project_id, reason=str(error))

    async def _tidy(self, project_id: str) -> None:
        pause = self._pauses.get(project_id)
        if pause is not None and self._get_time() < pause.ends_at:
            return
        try:
            await self._mirrors.get(project_id).tidy()
        except (SandyardError, OSError) as error:
            duration_s = FIRST_PAUSE_S if pause is None else min(pause.duration_s * 2, MAX_PAUSE_S)
            self._pauses[project_id] = _Pause(duration_s, self._get_time() + duration_s)
            log.warning("mirror_not_tidied", project=project_id, reason=str(error), pause_s=duration_s)
        else:
            self._pauses.pop(project_id, None)
