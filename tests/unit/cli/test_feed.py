"""The loop of commands that follow something."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sandyard.cli.live import feed
from sandyard.cli.live.asks import AskPrompt
from sandyard.cli.live.feed import FeedUpdate, follow_until
from sandyard.cli.live.screen import Screen


class NoPrompt:
    is_open = False

    def refresh(self) -> None:
        pass

    def read_input(self) -> None:
        pass


def test_a_connection_that_is_lost_at_once_counts_as_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    class LosingFeed(feed.Feed):
        def __init__(self, *arguments: Any) -> None:
            self.waits = 0

        def __enter__(self) -> LosingFeed:
            return self

        def __exit__(self, *arguments: object) -> None:
            pass

        def wait(self, seconds: float) -> FeedUpdate:
            self.waits += 1
            assert self.waits < 3, "the state is never fetched"
            return FeedUpdate(reconnected=True, lost="The stream ended.")

    monkeypatch.setattr(feed, "Feed", LosingFeed)
    with Screen() as screen:
        found = follow_until(
            cast(Any, None), {}, screen, cast(AskPrompt, NoPrompt()), lambda update: "found" if update else None
        )
    assert found == "found"
