"""Preview access: a single-use ticket is exchanged for a pass that a browser keeps for one port of one sandbox.

Both are sealed with the platform's key for their port: they are useless for any other one, and so is a ticket of the
API. A pass identifies its holder, and is valid while that person could still sign in the same way and may see the
sandbox.
"""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from typing import Protocol

from sandyard.kit.clock import Clock
from sandyard.kit.errors import NotFoundError
from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault, VaultError
from sandyard.platform.db.database import Database
from sandyard.platform.domain.previews.addresses import Place
from sandyard.platform.domain.sandboxes.repository import SandboxRepository
from sandyard.platform.domain.users.authentication import is_still_valid
from sandyard.platform.domain.users.model import Issued, Principal
from sandyard.platform.settings import PlatformSettings

LOOK_S = 5.0
"""How long a database check is cached, because a page requests a hundred files at once."""
LONGEST = 2000
_TICKET, _PASS = "preview ticket", "preview pass"
_MAX_CACHED = 5000


class Tickets(Protocol):
    async def create_ticket(self, caller: Principal) -> Issued: ...
    async def by_ticket(self, value: str) -> Principal | None: ...


class Passes:
    def __init__(
        self, database: Database, tickets: Tickets, vault: Vault, settings: PlatformSettings, clock: Clock
    ) -> None:
        self._database = database
        self._rows = SandboxRepository(database)
        self._tickets = tickets
        self._vault = vault
        self._clock = clock
        self.seconds = settings.login_days * 86400
        self._cache: dict[tuple[Place, str], tuple[float, Principal]] = {}

    async def ticket(self, caller: Principal, place: Place) -> tuple[str, datetime]:
        issued = await self._tickets.create_ticket(caller)
        assert issued.expires_at is not None
        return self._seal(issued.value.reveal(), _TICKET, place), issued.expires_at

    async def exchange(self, place: Place, ticket: str) -> str | None:
        """Exchange a ticket for a pass, which uses the ticket up. None if it was used, has expired, or is for another
        port."""
        value = self._open(ticket, _TICKET, place)
        holder = await self._tickets.by_ticket(value) if value is not None else None
        if holder is None or not await self._has_access(holder, place):
            return None
        expires = round(self._clock.now()) + self.seconds
        return self._seal(json.dumps([holder.user_id, holder.name, holder.role, holder.means, expires]), _PASS, place)

    async def holder(self, place: Place, value: str) -> Principal | None:
        """Return the holder of a pass. None if it is invalid or no longer valid. Raises DatabaseUnavailableError."""
        now = self._clock.now()
        seen = self._cache.get((place, value))
        if seen is not None and 0 <= now - seen[0] < LOOK_S:
            return seen[1]
        self._cache.pop((place, value), None)
        opened = self._open(value, _PASS, place)
        if opened is None:
            return None
        *who, expires = json.loads(opened)
        holder = Principal(*who)
        if expires <= now or not await self._has_access(holder, place):
            return None
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        self._cache[place, value] = (now, holder)
        return holder

    async def _has_access(self, holder: Principal, place: Place) -> bool:
        if not await is_still_valid(self._database, self._clock, holder):
            return False
        try:
            await self._rows.get_for(holder, place.sandbox_id)
        except NotFoundError:
            return False
        return True

    def _seal(self, value: str, purpose: str, place: Place) -> str:
        sealed = self._vault.seal(Secret(value), purpose, place.sandbox_id, str(place.port))
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def _open(self, given: str, purpose: str, place: Place) -> str | None:
        if not given or len(given) > LONGEST:
            return None
        try:
            sealed = base64.b64decode(given + "=" * (-len(given) % 4), altchars=b"-_", validate=True)
            return self._vault.open(sealed, purpose, place.sandbox_id, str(place.port)).reveal()
        except (binascii.Error, ValueError, VaultError):
            return None
