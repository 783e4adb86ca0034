"""Model providers: administrators add those for all users, project owners those of their project. Keys are write-only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, or_, select, true

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import ModelProvider, Project
from sandyard.platform.domain.models import addresses
from sandyard.platform.domain.models.apis import DEFAULT_URLS
from sandyard.platform.domain.models.model import ModelApi, Price, ProviderInfo
from sandyard.platform.domain.models.presets import get_preset
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.projects.service import Projects, is_visible_to
from sandyard.platform.domain.users.model import Principal

UNCHANGED: Any = object()
"""In place of a key: keep the stored one. None removes it."""
Check = Callable[[ModelProvider, Secret | None], Awaitable[Sequence[str]]]
"""Called with a provider and its key before they are stored. Raises if they do not work; returns the provider's models."""
MAX_KEY, MAX_MODELS = 4000, 500
_HINT_LENGTH = 4  # characters of a key
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,98}[A-Za-z0-9]|[A-Za-z0-9]")
_KEY = re.compile(r"[!-~]+")
_MODEL = re.compile(r"[!-~]{1,200}")


class Providers:
    """Operations on providers. Users see the providers of their projects and those for all users.

    Only those who may change a project may change its providers.
    """

    def __init__(self, database: Database, projects: Projects, vault: Vault, clock: Clock) -> None:
        self._database = database
        self._projects = projects
        self.vault = vault
        self._clock = clock

    async def create(
        self,
        caller: Principal,
        *,
        name: str | None = None,
        kind: ModelApi | None = None,
        preset: str | None = None,
        project_id: str | None = None,
        base_url: str | None = None,
        key: Secret | None = None,
        models: Sequence[str] | None = None,
        prices: Mapping[str, Price] | None = None,
        check: Check | None = None,
    ) -> ProviderInfo:
        """Create a provider. Fields left out are taken from the preset. The default `base_url` is the provider's public address, if any.

        `check` is called with the row before it is stored, and may raise. Raises ConflictError if the name is taken.
        """
        owner = await self._require_permission(caller, project_id)
        preset_info = get_preset(preset) if preset is not None else None
        if preset_info is not None:
            name, kind, base_url = name or preset_info.name, kind or preset_info.kind, base_url or preset_info.base_url
            models = preset_info.models if models is None else models
            prices = {**preset_info.prices, **(prices or {})}
        if name is None or kind is None:
            raise InvalidInputError("A provider needs a name and an API type (kind), or a preset.")
        address = base_url or DEFAULT_URLS.get(kind)
        if address is None:
            raise InvalidInputError(f"A provider with the API type {kind.value} needs a URL (baseUrl).")
        now = get_time(self._clock)
        row = ModelProvider(
            id=make_ordered_id("prv_"),
            project_id=project_id,
            name=_check_name(name),
            kind=kind.value,
            base_url=await addresses.normalize(caller, address),
            named_by_admin=caller.is_admin,
            key=None,
            hint="",
            models=_check_models(models or ()),
            prices=_check_prices(prices or {}),
            created_at=now,
            updated_at=now,
        )
        await self._seal(row, key)
        if check is not None:
            async with self._database.transaction() as tx:
                await _require_unused_name(tx, row)  # fail before sending a request to the provider
            listed = await check(row, key)
            if preset_info is not None and not preset_info.models and not row.models:
                row.models = _check_models([model for model in listed if _MODEL.fullmatch(model)])
        async with self._database.transaction() as tx:
            await _require_unused_name(tx, row)
            tx.add(row)
            _emit(tx, "model_provider.created", row, owner)
        return make_info(row)

    async def update(
        self,
        caller: Principal,
        provider_id: str,
        *,
        name: str | None = None,
        base_url: str | None = None,
        key: Secret | None = UNCHANGED,
        models: Sequence[str] | None = None,
        prices: Mapping[str, Price] | None = None,
        check: Check | None = None,
    ) -> ProviderInfo:
        """Change the given fields. A `key` of None removes it.

        Raises ConflictError if a stored key would be sent to another server, so that nobody can read it by changing the address to their own
        server.
        """
        provider = await self.get(caller, provider_id)
        owner = await self._require_permission(caller, provider.project_id)
        address = None if base_url is None else await addresses.normalize(caller, base_url)
        sealed = ModelProvider(id=provider_id)
        if key is not UNCHANGED:
            await self._seal(sealed, key)
        if check is not None:
            await self._check_change(caller, provider_id, check, address=address, key=key, models=models)
        async with self._database.transaction() as tx:
            row = await tx.session.get(ModelProvider, provider_id)
            if row is None:
                raise _make_not_found(provider_id)
            _require_same_server(row, address, key)
            _set_address(row, address, caller)
            if key is not UNCHANGED:
                row.key, row.hint = sealed.key, sealed.hint
            if name is not None:
                row.name = _check_name(name)
                await _require_unused_name(tx, row)
            if models is not None:
                row.models = _check_models(models)
            if prices is not None:
                row.prices = _check_prices(prices)
            row.updated_at = get_time(self._clock)
            _emit(tx, "model_provider.updated", row, owner)
        return make_info(row)

    async def _check_change(
        self,
        caller: Principal,
        provider_id: str,
        check: Check,
        *,
        address: str | None,
        key: Secret | None,
        models: Sequence[str] | None,
    ) -> None:
        """Check a copy of the row with the changes."""
        async with self._database.reading() as session:
            row = await session.get(ModelProvider, provider_id)
            if row is None:
                raise _make_not_found(provider_id)
            session.expunge(row)
        _require_same_server(row, address, key)
        current_key = await self.reveal(row) if key is UNCHANGED else key
        _set_address(row, address, caller)
        row.models = row.models if models is None else _check_models(models)
        await check(row, current_key)

    async def delete(self, caller: Principal, provider_id: str) -> None:
        """Delete a provider. Its recorded usage is kept. Agents that use it get an error."""
        provider = await self.get(caller, provider_id)
        owner = await self._require_permission(caller, provider.project_id)
        async with self._database.transaction() as tx:
            row = await tx.session.get(ModelProvider, provider_id)
            if row is None:
                raise _make_not_found(provider_id)
            await tx.session.delete(row)
            _emit(tx, "model_provider.deleted", row, owner)

    async def get(self, caller: Principal, provider_id: str) -> ProviderInfo:
        async with self._database.reading() as session:
            row = await session.scalar(
                select(ModelProvider).where(ModelProvider.id == provider_id, _is_visible_to(caller))
            )
        if row is None:
            raise _make_not_found(provider_id)
        return make_info(row)

    async def list(
        self, caller: Principal, page: PageRequest, *, project_id: str | None = None
    ) -> Listing[ProviderInfo]:
        """List the providers the caller sees; with a project, those that its agents may use."""
        rows = select(ModelProvider).where(_is_visible_to(caller))
        if project_id is not None:
            await self._projects.get(caller, project_id)
            rows = rows.where(_is_usable_in(project_id))
        async with self._database.reading() as session:
            listed = await list_newest_first(session, rows, ModelProvider.id, page)
        return Listing([make_info(row) for row in listed.items], listed.next_cursor)

    async def list_scopes(self, caller: Principal) -> Sequence[tuple[str | None, ModelApi]]:
        """Return project (None means all users) and kind of all providers the caller sees."""
        rows = select(ModelProvider.project_id, ModelProvider.kind).where(_is_visible_to(caller)).distinct()
        async with self._database.reading() as session:
            return [(project_id, ModelApi(kind)) for project_id, kind in await session.execute(rows)]

    async def get_changeable(self, caller: Principal, provider_id: str) -> ModelProvider:
        """Return the row. Raises NotFoundError, and ForbiddenError if the caller may not change it."""
        await self._require_permission(caller, (await self.get(caller, provider_id)).project_id)
        async with self._database.reading() as session:
            row = await session.get(ModelProvider, provider_id)
        if row is None:
            raise _make_not_found(provider_id)
        return row

    # internal ----------------------------------------------------------------------------------------------------------

    async def list_usable(self, project_id: str | None) -> Sequence[ModelProvider]:
        """Return the providers that a project's agents may use: its own first, then those for all users, each by age."""
        rows = select(ModelProvider).where(_is_usable_in(project_id))
        async with self._database.reading() as session:
            listed = await session.scalars(rows.order_by(ModelProvider.project_id.is_(None), ModelProvider.id))
            return list(listed)

    async def find(self, provider_id: str, project_id: str | None) -> ModelProvider | None:
        """Return the provider; None if it does not exist or the project's agents may not use it."""
        async with self._database.reading() as session:
            row: ModelProvider | None = await session.scalar(
                select(ModelProvider).where(ModelProvider.id == provider_id, _is_usable_in(project_id))
            )
        return row

    async def reveal(self, row: ModelProvider) -> Secret | None:
        """Return the key. Raises VaultError if it cannot be decrypted."""
        if row.key is None:
            return None
        return await asyncio.to_thread(self.vault.open, row.key, *_get_seal_context(row.id))

    async def _seal(self, row: ModelProvider, key: Secret | None) -> None:
        row.key, row.hint = None, "no key"
        if key is None:
            return
        value = key.reveal()
        if len(value) > MAX_KEY or not _KEY.fullmatch(value):
            raise InvalidInputError(
                "The key is empty, too long, or contains spaces, line breaks or other invalid characters. Copy it again."
            )
        row.key = await asyncio.to_thread(self.vault.seal, key, *_get_seal_context(row.id))
        # four characters of a short one would reveal too much
        row.hint = f"…{value[-_HINT_LENGTH:]}" if len(value) >= 4 * _HINT_LENGTH else "…"

    async def _require_permission(self, caller: Principal, project_id: str | None) -> str | None:
        """Return the owner for events; None for providers of all users. Raises ForbiddenError if the caller may not change it."""
        if project_id is None:
            caller.require_admin()
            return None
        return (await self._projects.get_changeable(caller, project_id)).owner_id


def make_info(row: ModelProvider) -> ProviderInfo:
    return ProviderInfo(
        id=row.id,
        project_id=row.project_id,
        name=row.name,
        kind=ModelApi(row.kind),
        base_url=row.base_url,
        hint=row.hint,
        models=tuple(row.models),
        prices={model: Price.model_validate(price) for model, price in row.prices.items()},
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _is_visible_to(caller: Principal) -> ColumnElement[bool]:
    if caller.is_admin:
        return true()
    mine = select(Project.id).where(is_visible_to(caller))
    return or_(ModelProvider.project_id.is_(None), ModelProvider.project_id.in_(mine))


def _is_usable_in(project_id: str | None) -> ColumnElement[bool]:
    is_shared = ModelProvider.project_id.is_(None)
    return is_shared if project_id is None else or_(is_shared, ModelProvider.project_id == project_id)


async def _require_unused_name(tx: Transaction, row: ModelProvider) -> None:
    """Raise ConflictError if the name is taken. The database does not enforce this for providers without a project."""
    same = select(ModelProvider.id).where(ModelProvider.name == row.name, ModelProvider.id != row.id)
    same = same.where(
        ModelProvider.project_id.is_(None) if row.project_id is None else ModelProvider.project_id == row.project_id
    )
    with tx.session.no_autoflush:
        if await tx.session.scalar(same.limit(1)) is not None:
            raise ConflictError(f"The provider {row.name!r} already exists.")


def _require_same_server(row: ModelProvider, address: str | None, key: Secret | None) -> None:
    before, after = addresses.get_server(row.base_url), addresses.get_server(address or row.base_url)
    if row.key is not None and key is UNCHANGED and before != after:
        raise ConflictError(f"The key was entered for {before}. Enter the key for {after}.")


def _set_address(row: ModelProvider, address: str | None, caller: Principal) -> None:
    """Set a new address. An administrator who sets the same one again approves it."""
    if address is not None and (address != row.base_url or caller.is_admin):
        row.base_url, row.named_by_admin = address, caller.is_admin


def _emit(tx: Transaction, kind: str, row: ModelProvider, owner_id: str | None) -> None:
    tx.emit(
        kind,
        owner_id=owner_id,
        project_id=row.project_id,
        providerId=row.id,
        name=row.name,
        api=row.kind,
        hint=row.hint,
    )


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInputError("The name of a provider must have 1 to 100 letters, digits, dots, hyphens and spaces.")
    return name


def _check_models(models: Sequence[str]) -> list[str]:
    if len(models) > MAX_MODELS or not all(_MODEL.fullmatch(model) for model in models):
        raise InvalidInputError(f"Use at most {MAX_MODELS} models, each a name of up to 200 characters without spaces.")
    return list(dict.fromkeys(models))


def _check_prices(prices: Mapping[str, Price]) -> dict[str, Any]:
    if len(prices) > MAX_MODELS or not all(_MODEL.fullmatch(model) for model in prices):
        raise InvalidInputError(
            f"Use at most {MAX_MODELS} prices, each for a model name or for a prefix that ends with *."
        )
    return {model: price.model_dump(by_alias=True, exclude_none=True) for model, price in prices.items()}


def _make_not_found(provider_id: str) -> NotFoundError:
    return NotFoundError(f"There is no model provider {provider_id[:60]!r}.")


def _get_seal_context(provider_id: str) -> tuple[str, ...]:
    """Return the context a sealed key is bound to. It cannot be opened in another row."""
    return "model provider", provider_id
