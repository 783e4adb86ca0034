"""Teams and API keys. An engine is one team, and every key belongs to it: a holder of any key may manage all keys.

These are the same keys that `sandyard keys` manages; keys from the engine's command line are not stored and not listed.
A key is shown only in the response that creates it; a list shows just enough to recognise it. The team's `apiKey` is a
required field that the CLI stores: it is the key of the current request. Access tokens belong to E2B's users; an engine
has no users, so a key is returned as the token.
"""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from sandyard.engine.e2b.control import views
from sandyard.engine.e2b.control.guard import get_credential
from sandyard.engine.e2b.control.wire import KeyName
from sandyard.engine.store.keys import PREFIX, SECRET_BYTES, ApiKey, ApiKeys
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

TEAM_ID = str(uuid.uuid5(uuid.NAMESPACE_URL, "sandyard:team"))
TEAM_NAME = "sandyard"


def make_router(keys: ApiKeys) -> APIRouter:
    router = APIRouter()

    @router.get("/teams")
    async def teams(request: Request) -> JSONResponse:
        used = get_credential(request.scope["headers"])
        return JSONResponse([{"teamID": TEAM_ID, "name": TEAM_NAME, "apiKey": used, "isDefault": True}])

    @router.get("/api-keys")
    async def list_keys() -> JSONResponse:
        return JSONResponse([_view(key) for key in keys.list()])

    def create_key(request: Request, name: str) -> tuple[ApiKey, str]:
        key, secret = keys.create(name)
        log.info("key_created", key=key.id, label=key.label, by=_get_caller_id(request))
        return key, secret.reveal()

    @router.post("/api-keys")
    async def create(request: Request, body: KeyName) -> JSONResponse:
        key, secret = create_key(request, body.name)
        return JSONResponse({**_view(key), "key": secret}, 201)

    @router.patch("/api-keys/{key_id}")
    async def rename(request: Request, key_id: str, body: KeyName) -> JSONResponse:
        key = keys.rename(key_id, body.name)
        log.info("key_renamed", key=key.id, label=key.label, by=_get_caller_id(request))
        return JSONResponse(_view(key))

    @router.post("/access-tokens")
    async def create_token(request: Request, body: KeyName) -> JSONResponse:
        key, secret = create_key(request, body.name)
        return JSONResponse({**_view(key), "token": secret}, 201)

    @router.delete("/api-keys/{key_id}")
    @router.delete("/access-tokens/{key_id}")
    async def revoke(request: Request, key_id: str) -> Response:
        key = keys.revoke(key_id)
        log.info("key_revoked", key=key.id, label=key.label, by=_get_caller_id(request))
        return Response(status_code=204)

    return router


def _get_caller_id(request: Request) -> str:
    key: ApiKey = request.scope["state"]["key"]
    return key.id


def _view(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.label,
        "mask": {
            "prefix": PREFIX,
            "valueLength": 2 * SECRET_BYTES,
            "maskedValuePrefix": key.hint.removeprefix(PREFIX).removesuffix("…"),
            "maskedValueSuffix": "",
        },
        "createdAt": views.format_time(key.created_at),
        "createdBy": None,
        "lastUsed": None,
    }
