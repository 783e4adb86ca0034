"""Events, live and past."""

from sandyard.platform.domain.events.feed import Feed, Subscription
from sandyard.platform.domain.events.model import EventFilter, EventView

__all__ = ["EventFilter", "EventView", "Feed", "Subscription"]
