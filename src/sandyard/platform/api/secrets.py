"""Secrets: written, listed by name, never shown."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from pydantic import Field, SecretStr

from sandyard.kit.secret import Secret
from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example
from sandyard.platform.domain.secrets import service

router = api_router("secrets")
Secrets = Annotated[service.Secrets, inject("secrets")]
SecretName = Annotated[
    str,
    Path(max_length=200, pattern=f"^{service.NAME.pattern}$", examples=["NPM_TOKEN"], description="The secret's name."),
]
ProjectFilter = Annotated[
    str | None,
    Query(alias="projectId", max_length=40, description="The project's id. If it is left out: your own secrets."),
]


class SecretView(Model):
    model_config = example(
        id="sec_0mh3k7a1x2abcdefghij",
        name="NPM_TOKEN",
        projectId=None,
        createdAt="2026-01-31T10:00:00.000Z",
        updatedAt="2026-01-31T10:00:00.000Z",
    )

    id: str
    name: str
    project_id: str | None
    created_at: Instant
    updated_at: Instant


class SecretValue(Input):
    model_config = example(value="hunter2", projectId=None)

    value: SecretStr = Field(min_length=1, max_length=service.MAX_SIZE)
    project_id: str | None = Field(
        default=None, max_length=40, description="The project's id. If it is null: your own secret."
    )


@router.get("/secrets", name="secret.list")
async def list_secrets(
    caller: Caller, page: Paging, secrets: Secrets, project_id: ProjectFilter = None
) -> Page[SecretView]:
    """List the names of secrets. No endpoint returns their values."""
    return Page[SecretView].from_listing(await secrets.list(caller, page, project_id), SecretView.model_validate)


@router.put("/secrets/{name}", name="secret.put", dependencies=[limit_rate("create")])
async def put_secret(
    caller: Caller, name: SecretName, body: SecretValue, request: Request, secrets: Secrets
) -> SecretView:
    """Create a secret or replace its value."""
    if body.project_id is not None:
        add_audit_detail(request, project=body.project_id)
    value = Secret(body.value.get_secret_value())
    return SecretView.model_validate(await secrets.put(caller, name, value, body.project_id))


@router.delete("/secrets/{name}", name="secret.delete", status_code=204)
async def delete_secret(
    caller: Caller, name: SecretName, request: Request, secrets: Secrets, project_id: ProjectFilter = None
) -> None:
    if project_id is not None:
        add_audit_detail(request, project=project_id)
    await secrets.delete(caller, name, project_id)
