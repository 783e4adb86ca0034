"""The resource usage of users and projects, and their limits."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import AdminCaller, Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Model, example, id_in_path
from sandyard.platform.domain.instance.quotas import QuotaName, QuotaService, UserQuotaState
from sandyard.platform.domain.users.quotas import UserQuotas

router = api_router("quotas")
Service = Annotated[QuotaService, inject("quotas")]
UserId = Annotated[str, id_in_path("user", "usr_0mh3k7a1x2abcdefghij")]
ProjectId = Annotated[str, id_in_path("project", "prj_0mh3k7a1x2abcdefghij")]
_ITEM: dict[str, Any] = {"name": "cpus", "used": 6, "limit": 16}


class QuotaView(Model):
    model_config = example(**_ITEM)

    name: QuotaName = Field(
        description="`runningSandboxes`, and `cpus` and `memoryMb` of these together; `diskMb` of all sandboxes, as last measured; "
        "`monthlyUsd` and `monthlyTokens` for models in this calendar month (UTC)."
    )
    used: float
    limit: float | None = Field(description="Null: no limit.")


class QuotaList(Model):
    items: list[QuotaView]


class UserQuotaInput(Input, UserQuotas):
    """All limits of a user. For fields that are left out or null, the server's defaults apply; 0 means no limit."""

    model_config = example(runningSandboxes=10, cpus=16, monthlyUsd=50)


class UserQuotasView(Model):
    items: list[QuotaView]
    own: UserQuotas = Field(description="The limits set for this user. Null: the server's default. 0: no limit.")


@router.get("/users/{user_id}/quotas", name="user.get_quotas")
async def get_user_quotas(caller: Caller, user_id: UserId, service: Service) -> UserQuotasView:
    """Get the usage and limits of a user. Users can see their own; administrators can see everyone's."""
    return _render(await service.read_user(caller, user_id))


@router.put("/users/{user_id}/quotas", name="user.set_quotas", dependencies=[limit_rate("execute")])
async def set_user_quotas(
    caller: AdminCaller, user_id: UserId, body: UserQuotaInput, request: Request, service: Service
) -> UserQuotasView:
    """Set the limits of a user. They apply to work that starts from now on; nothing that is running is stopped."""
    add_audit_detail(request, quotas=body.model_dump(by_alias=True, exclude_none=True))
    return _render(await service.set_user(caller, user_id, UserQuotas(**body.model_dump())))


@router.get("/projects/{project_id}/quotas", name="project.get_quotas")
async def get_project_quotas(caller: Caller, project_id: ProjectId, service: Service) -> QuotaList:
    """Get the usage and limits of a project. The limits are in its settings: `quotas` and `tasks.monthlyBudget`."""
    items = await service.read_project(caller, project_id)
    return QuotaList(items=[QuotaView.model_validate(item) for item in items])


def _render(state: UserQuotaState) -> UserQuotasView:
    return UserQuotasView(items=[QuotaView.model_validate(item) for item in state.items], own=state.own)
