"""The keys that encrypt stored secrets. Not part of E2B's API."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from sandyard.engine.e2b.control.context import Context
from sandyard.kit.vault import KeyState


def make_router(context: Context) -> APIRouter:
    router = APIRouter()
    secrets = context.secrets

    @router.get("/encryption-keys")
    async def read() -> JSONResponse:
        """Return the ids of the keys, newest first, and how many values each has encrypted."""
        return JSONResponse(_render(secrets.describe_keys()))

    @router.post("/encryption-keys/rotate")
    async def rotate() -> JSONResponse:
        """Encrypt all secrets with a new key. The old one is removed a day later."""
        return JSONResponse(_render(await secrets.rotate_key()))

    return router


def _render(state: KeyState) -> dict[str, Any]:
    return {
        "keys": [{"id": key, "values": count} for key, count in state.keys],
        "unknown": state.unknown,
        "changedAt": state.changed_at,
    }
