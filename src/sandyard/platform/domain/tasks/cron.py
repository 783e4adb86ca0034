"""Compute the next time of a five-field cron expression in a time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from sandyard.kit.errors import InvalidInputError

MAX_CRON, MAX_ZONE = 100, 60
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")


def parse_zone(name: str) -> tzinfo:
    """Return the time zone. Raises InvalidInputError. `UTC` works even without time zone data."""
    if name == "UTC":
        return UTC
    if _ZONE.fullmatch(name) and len(name) <= MAX_ZONE:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):  # unknown, or a folder of zones
            pass
    raise InvalidInputError(f"Unknown time zone {name[:60]!r}. Use a name like UTC or Europe/Berlin.")


def get_next_time(cron: str, timezone: str, after: datetime) -> datetime:
    """Return the first time after `after`, in UTC. Raises InvalidInputError, which says what is wrong.

    When clocks are set back, a time in the repeated hour occurs once. When they are set forward, a time in the skipped hour occurs right
    after it.
    """
    zone = parse_zone(timezone)
    if len(cron.split()) != 5 or len(cron) > MAX_CRON:
        raise _make_error(cron, "it must have five fields: minute, hour, day of month, month, day of week")
    try:
        found = next(CronSim(cron, after.astimezone(zone)))
    except CronSimError as error:
        raise _make_error(cron, str(error)) from None
    except StopIteration:
        raise _make_error(cron, "it never matches") from None
    except (
        AssertionError,
        ValueError,
        TypeError,
        IndexError,
        OverflowError,
        RecursionError,
    ):  # errors that CronSim does not handle
        raise _make_error(cron, "it cannot be parsed") from None
    return found.astimezone(UTC)


def _make_error(cron: str, reason: str) -> InvalidInputError:
    return InvalidInputError(f"{cron[:60]!r} is not a valid cron expression: {reason}. Example: 0 6 * * MON-FRI")
