from __future__ import annotations

from typing import Any, cast

from sandyard.platform.domain.git.mirror_tidying import FIRST_PAUSE_S, MAX_PAUSE_S, MirrorTidying
from sandyard.platform.domain.repositories.errors import GitTimeoutError


class FakeMirrors:
    """Mirrors of which some cannot be tidied."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.calls: list[str] = []
        self.current = ""

    def get(self, project_id: str) -> FakeMirrors:
        self.current = project_id
        return self

    async def tidy(self) -> None:
        self.calls.append(self.current)
        if self.current in self.broken:
            raise GitTimeoutError

    async def remove(self, project_id: str) -> None:
        self.calls.append(f"remove {project_id}")
        if project_id in self.broken:
            raise OSError


async def test_others_are_tidied_if_one_fails() -> None:
    mirrors = FakeMirrors()
    mirrors.broken = {"a", "c"}
    await MirrorTidying(cast(Any, mirrors)).tidy(["a", "b", "c", "d"], {"a", "b"})
    assert mirrors.calls == ["a", "b", "remove c", "remove d"]


async def test_a_mirror_that_fails_is_tried_again_after_growing_pauses() -> None:
    mirrors, now = FakeMirrors(), 0.0
    tidying = MirrorTidying(cast(Any, mirrors), lambda: now)
    mirrors.broken = {"a"}
    pauses = list[float]()
    for _ in range(8):
        begun, attempts = now, len(mirrors.calls)
        while len(mirrors.calls) == attempts:
            now += 600
            await tidying.tidy(["a"], {"a"})
        pauses.append(now - begun)
    assert pauses == [600, *(min(FIRST_PAUSE_S * 2**n, MAX_PAUSE_S) for n in range(7))]
    assert pauses[-1] == MAX_PAUSE_S
    mirrors.broken = set()
    now += MAX_PAUSE_S
    for _ in range(2):
        await tidying.tidy(["a"], {"a"})
    assert len(mirrors.calls) == 10
