"""Five fields of cron and a time zone: when is the next time?"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from sandyard.kit.errors import InvalidInputError

MAX_CRON, MAX_ZONE = 100, 60
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")


def zone(name: str) -> tzinfo:
    """InvalidInputError. `UTC` is there also where a machine has no data of time zones."""
    if name == "UTC":
        return UTC
    if _ZONE.fullmatch(name) and len(name) <= MAX_ZONE:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):  # unknown, or a folder of zones
            pass
    raise InvalidInputError(
        f"{name[:60]!r} is no time zone that this machine knows; use one like UTC or Europe/Berlin."
    )


def next_time(cron: str, timezone: str, after: datetime) -> datetime:
    """The first one after that moment, in UTC. InvalidInputError says what is wrong with it.

    Where clocks are set back, what is due in the doubled hour happens once; where they are set forward, what is due in the missing
    hour happens right after it.
    """
    where = zone(timezone)
    if len(cron.split()) != 5 or len(cron) > MAX_CRON:
        raise _wrong(cron, "it has five fields: minute, hour, day of the month, month, day of the week")
    try:
        found = next(CronSim(cron, after.astimezone(where)))
    except CronSimError as error:
        raise _wrong(cron, str(error)) from None
    except StopIteration:
        raise _wrong(cron, "that never comes") from None
    except (AssertionError, ValueError, TypeError, IndexError, OverflowError, RecursionError):  # what it did not expect
        raise _wrong(cron, "it is not understood") from None
    return found.astimezone(UTC)


def _wrong(cron: str, why: str) -> InvalidInputError:
    return InvalidInputError(f"{cron[:60]!r} is no cron expression: {why}. For example: 0 6 * * MON-FRI")
