"""The keys that encrypt stored secrets, for administrators."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import Request
from pydantic import Field

from sandyard.kit.errors import SandyardError
from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import AdminCaller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Instant, Model, example
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from sandyard.platform.domain.secrets.encryption_keys import EncryptionKeys

router = api_router("service")
Keys = Annotated[EncryptionKeys, inject("encryption_keys")]
Engine = Annotated[SandboxEngine, inject("engine")]


class EncryptionKeyView(Model):
    model_config = example(place="platform", id="6d1f0a9be2c34455", values=12, current=True)

    place: Literal["platform", "engine"]
    id: str = Field(description="The beginning of a digest of the key. Not secret.")
    values: int = Field(description="Number of stored values that are encrypted with the key.")
    current: bool = Field(
        description="True for the key that encrypts. Other keys only decrypt, and are removed a day after the rotation."
    )


class EncryptionKeysView(Model):
    items: list[EncryptionKeyView] = Field(description="Newest first.")
    unreadable: int = Field(
        description="Number of values that cannot be decrypted, because their key is missing from the key file."
    )
    changed_at: Instant = Field(description="When the platform's key file was last changed.")
    engine_error: str | None = Field(description="Why the engine's keys are missing.")


@router.get("/encryption-keys", name="encryption_key.list", dependencies=[limit_rate("execute")])
async def list_encryption_keys(_: AdminCaller, keys: Keys, engine: Engine) -> EncryptionKeysView:
    """List the keys that encrypt secrets in the databases of the platform and the engine."""
    return await _describe(keys, engine, rotate=False)


@router.post("/encryption-keys/rotate", name="encryption_key.rotate", dependencies=[limit_rate("execute")])
async def rotate_encryption_keys(_: AdminCaller, request: Request, keys: Keys, engine: Engine) -> EncryptionKeysView:
    """Encrypt all stored secrets with new keys. The platform and the engine keep running."""
    found = await _describe(keys, engine, rotate=True)
    add_audit_detail(request, keys=[key.id for key in found.items if key.current])
    return found


async def _describe(keys: EncryptionKeys, engine: SandboxEngine, *, rotate: bool) -> EncryptionKeysView:
    state = await (keys.rotate() if rotate else keys.describe())
    items, unreadable, error = list(_render("platform", state.keys)), state.unknown, None
    try:
        other = await (engine.encryption_keys.rotate() if rotate else engine.encryption_keys.describe())
    except SandyardError as failure:
        error = failure.message
    else:
        items += _render("engine", ((key.id, key.values) for key in other.keys))
        unreadable += other.unknown
    return EncryptionKeysView(
        items=items,
        unreadable=unreadable,
        changed_at=datetime.fromtimestamp(state.changed_at, UTC),
        engine_error=error,
    )


def _render(place: Literal["platform", "engine"], keys: Iterable[tuple[str, int]]) -> Iterable[EncryptionKeyView]:
    for number, (key, count) in enumerate(keys):
        yield EncryptionKeyView(place=place, id=key, values=count, current=number == 0)
