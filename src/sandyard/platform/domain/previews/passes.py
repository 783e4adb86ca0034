"""Preview access: a single-use ticket is exchanged for a pass that a browser keeps for one port of one sandbox.

Both are sealed with the platform's key for one port and are not valid for another port. Tickets of the API are not
valid either. A pass identifies its holder. It is valid while that person may see the sandbox and could still sign in the
same way.
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
from sandyard.platform.domain.previews.addresses import PreviewPort
from sandyard.platform.domain.sandboxes.repository import SandboxRepository
from sandyard.platform.domain.users.authentication import is_still_valid
from sandyard.platform.domain.users.model import IssuedSecret, Principal
from sandyard.platform.settings import PlatformSettings

CACHE_S = 5.0
"""How long a database check is cached, because a page requests a hundred files at once."""
MAX_LENGTH = 2000
_TICKET, _PASS = "preview ticket", "preview pass"
_MAX_CACHED = 5000


class Tickets(Protocol):
    async def create_ticket(self, caller: Principal) -> IssuedSecret: ...
    async def authenticate_ticket(self, value: str) -> Principal | None: ...


class Passes:
    """Creates and checks tickets and passes."""

    def __init__(
        self, database: Database, tickets: Tickets, vault: Vault, settings: PlatformSettings, clock: Clock
    ) -> None:
        self._database = database
        self._rows = SandboxRepository(database)
        self._tickets = tickets
        self._vault = vault
        self._clock = clock
        self.lifetime_s = settings.login_days * 86400
        self._cache: dict[tuple[PreviewPort, str], tuple[float, Principal]] = {}

    async def create_ticket(self, caller: Principal, preview: PreviewPort) -> tuple[str, datetime]:
        issued = await self._tickets.create_ticket(caller)
        assert issued.expires_at is not None
        return self._seal(issued.value.reveal(), _TICKET, preview), issued.expires_at

    async def exchange_ticket(self, preview: PreviewPort, ticket: str) -> str | None:
        """Exchange a ticket for a pass. The ticket can be used once. None if it was used, has expired, or is for another
        port."""
        value = self._open(ticket, _TICKET, preview)
        holder = await self._tickets.authenticate_ticket(value) if value is not None else None
        if holder is None or not await self._has_access(holder, preview):
            return None
        expires = round(self._clock.now()) + self.lifetime_s
        return self._seal(json.dumps([holder.user_id, holder.name, holder.role, holder.means, expires]), _PASS, preview)

    async def find_holder(self, preview: PreviewPort, value: str) -> Principal | None:
        """Return the holder of a pass. None if it is invalid or no longer valid. Raises DatabaseUnavailableError."""
        now = self._clock.now()
        cached = self._cache.get((preview, value))
        if cached is not None and 0 <= now - cached[0] < CACHE_S:
            return cached[1]
        self._cache.pop((preview, value), None)
        opened = self._open(value, _PASS, preview)
        if opened is None:
            return None
        *fields, expires = json.loads(opened)
        holder = Principal(*fields)
        if expires <= now or not await self._has_access(holder, preview):
            return None
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        self._cache[preview, value] = (now, holder)
        return holder

    async def _has_access(self, holder: Principal, preview: PreviewPort) -> bool:
        if not await is_still_valid(self._database, self._clock, holder):
            return False
        try:
            await self._rows.get_for(holder, preview.sandbox_id)
        except NotFoundError:
            return False
        return True

    def _seal(self, value: str, purpose: str, preview: PreviewPort) -> str:
        sealed = self._vault.seal(Secret(value), purpose, preview.sandbox_id, str(preview.port))
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def _open(self, given: str, purpose: str, preview: PreviewPort) -> str | None:
        if not given or len(given) > MAX_LENGTH:
            return None
        try:
            sealed = base64.b64decode(given + "=" * (-len(given) % 4), altchars=b"-_", validate=True)
            return self._vault.open(sealed, purpose, preview.sandbox_id, str(preview.port)).reveal()
        except (binascii.Error, ValueError, VaultError):
            return None
