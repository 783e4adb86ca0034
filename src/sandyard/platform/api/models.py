"""Model providers and usage. Keys can be written and are listed as hints only."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import Field, SecretStr, TypeAdapter

from sandyard.kit.pacing import take_turn
from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.credential_input import to_secret
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_large_responses, limit_remote_requests
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, Moment, example, id_in_path
from sandyard.platform.domain.agents import catalogue
from sandyard.platform.domain.models import addresses, providers, service
from sandyard.platform.domain.models.model import ModelApi, Price, UsageTotals
from sandyard.platform.domain.models.presets import get_price_date, list_presets
from sandyard.platform.domain.models.providers import MAX_KEY, MAX_MODELS

router = api_router("models")
Models = Annotated[service.Models, inject("models")]
Agents = Annotated[catalogue.AgentCatalogue, inject("agents")]
ProviderId = Annotated[str, id_in_path("provider", "prv_0mh3k7a1x2abcdefghij")]
ProjectFilter = Annotated[
    str | None, Query(alias="projectId", max_length=40, description="Only providers that the project's agents may use.")
]
Name = Annotated[str, Field(min_length=1, max_length=100, examples=["anthropic"])]
Url = Annotated[str, Field(min_length=1, max_length=addresses.MAX_LENGTH, examples=["https://api.anthropic.com"])]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
ModelNames = Annotated[list[ModelName], Field(max_length=MAX_MODELS, description="The first one is the default.")]
Key = Annotated[SecretStr, Field(min_length=1, max_length=MAX_KEY)]
Prices = Annotated[
    dict[ModelName, Price],
    Field(
        max_length=MAX_MODELS,
        description="By model, in US dollars per million tokens. End a name with * to match a prefix.",
        examples=[{"claude-sonnet-*": {"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75}}],
    ),
]


class ModelPresetView(Model):
    model_config = example(
        name="anthropic",
        title="Anthropic",
        kind="anthropic",
        baseUrl="https://api.anthropic.com",
        keyRequired=True,
        keyUrl="https://platform.claude.com/settings/keys",
        models=["claude-sonnet-5-5"],
        prices={"claude-sonnet-*": {"input": 3, "output": 15}},
        agents=["opencode", "claude"],
    )

    name: str
    title: str
    kind: ModelApi
    base_url: str
    key_required: bool
    key_url: str | None = Field(description="Where to create API keys.")
    models: list[str] = Field(description="Empty means the models that the server at its address offers.")
    prices: dict[str, Price]
    agents: list[str] = Field(description="The agents that can use it.")


class ModelPresets(Model):
    items: list[ModelPresetView]
    prices_taken: date = Field(description="The date of the prices.")


class ModelProviderView(Model):
    model_config = example(
        id="prv_0mh3k7a1x2abcdefghij",
        projectId=None,
        name="anthropic",
        kind="anthropic",
        baseUrl="https://api.anthropic.com",
        hint="…wxyz",
        models=["claude-sonnet-4-5"],
        prices={"claude-sonnet-*": {"input": 3, "output": 15}},
        createdAt="2026-01-31T10:00:00.000Z",
        updatedAt="2026-01-31T10:00:00.000Z",
    )

    id: str
    project_id: str | None = Field(description="Null means the provider is available to all users.")
    name: str
    kind: ModelApi
    base_url: str
    hint: str = Field(description="The end of the key. No endpoint returns more of it.")
    models: list[str]
    prices: dict[str, Price]
    created_at: Instant
    updated_at: Instant


class NewModelProvider(Input):
    model_config = example(preset="anthropic", key="sk-…")

    preset: str | None = Field(
        default=None,
        max_length=40,
        description="A name from GET /model-presets. Fields left out here are taken from it.",
    )
    name: Name | None = Field(default=None, description="Required without a preset.")
    kind: ModelApi | None = Field(default=None, description="The API type. Required without a preset.")
    project_id: str | None = Field(
        default=None, max_length=40, description="Null means all users; administrators only."
    )
    base_url: Url | None = Field(
        default=None, description="Default: the public address of the provider, if it has one."
    )
    key: Key | None = Field(default=None, description="Null if the provider needs no key.")
    models: ModelNames | None = None
    test: bool = Field(
        default=False,
        description="Send the provider a small request first. If it fails, nothing is stored (`connection_test_failed`, with `cause`). "
        "For a preset without models, the provider's own list of models is stored.",
    )
    prices: Prices | None = Field(
        default=None,
        description="With a preset, these are added to its prices. Prices of well-known providers are built in.",
    )


class ModelProviderChange(Input):
    """Fields left out are not changed. A `key` of null removes the key."""

    model_config = example(models=["claude-sonnet-4-5"], prices={"claude-sonnet-*": {"input": 3, "output": 15}})

    name: Name | None = None
    base_url: Url | None = Field(default=None, description="If the host changes, the key must be sent again.")
    key: Key | None = None
    models: ModelNames | None = None
    prices: Prices | None = None
    test: bool = Field(default=False, description="Test before saving, as in POST.")


class ModelProviderTest(Model):
    model_config = example(ok=True, detail="The model claude-sonnet-4-5 answered.", model=None, durationMs=840)

    ok: bool
    detail: str
    model: str | None
    duration_ms: int
    cause: str | None = Field(
        default=None, description="Why it failed: key, quota, busy, model, address, unreachable or error."
    )
    models: list[str] = Field(default_factory=list, description="The provider's models, if they were requested.")


class UsageSums(Model):
    """Totals over requests to models."""

    calls: int
    input_tokens: int = Field(description="Includes tokens read from and written to a cache.")
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None = Field(description="The known cost. Null if no price is known.")
    unpriced: int = Field(description="Number of responses not included in `costUsd`.")
    estimated: int = Field(
        description="Number of requests whose cost is an estimate: they were stopped or interrupted, are in progress, or reported no usage."
    )


class UsageOfModel(UsageSums):
    model: str | None


class UsageView(UsageSums):
    models: list[UsageOfModel]


class UsageOfDay(UsageOfModel):
    day: date = Field(description="In UTC.")
    project_id: str | None = Field(description="Null for sessions without a project.")


class UsageDays(Model):
    items: list[UsageOfDay]
    truncated: bool = Field(description="True if there are older days. Ask for fewer days or for one project.")


@router.get("/model-presets", name="model_preset.list")
async def presets(caller: Caller, agents: Agents) -> ModelPresets:
    """List well-known providers with their addresses, models and prices."""
    profiles = [agent.profile for agent in await agents.list(caller)]
    items = [
        ModelPresetView(**preset.model_dump(), agents=[profile.name for profile in profiles if preset.serves(profile)])
        for preset in list_presets()
    ]
    return ModelPresets(items=items, prices_taken=get_price_date())


@router.get("/model-providers", name="model_provider.list")
async def list_(
    caller: Caller, page: Paging, models: Models, project_id: ProjectFilter = None
) -> Page[ModelProviderView]:
    found = await models.providers.list(caller, page, project_id=project_id)
    return Page[ModelProviderView].from_listing(found, ModelProviderView.model_validate)


@router.post(
    "/model-providers",
    name="model_provider.create",
    status_code=201,
    dependencies=[limit_rate("create"), limit_remote_requests()],
)
async def create(caller: Caller, body: NewModelProvider, request: Request, models: Models) -> ModelProviderView:
    """Add a provider: for all users (administrators only) or for a project (its owner)."""
    provider = await models.providers.create(
        caller,
        name=body.name,
        kind=body.kind,
        preset=body.preset,
        project_id=body.project_id,
        base_url=body.base_url,
        key=to_secret(body.key),
        models=body.models,
        prices=body.prices,
        check=models.check_provider if body.test else None,
    )
    add_audit_detail(request, target=provider.id, provider=provider.name)
    return ModelProviderView.model_validate(provider)


@router.get("/model-providers/{provider_id}", name="model_provider.get", dependencies=[limit_large_responses()])
async def get(caller: Caller, provider_id: ProviderId, models: Models) -> ModelProviderView:
    return ModelProviderView.model_validate(await models.providers.get(caller, provider_id))


@router.patch(
    "/model-providers/{provider_id}",
    name="model_provider.update",
    dependencies=[limit_rate("create"), limit_remote_requests()],
)
async def update(
    caller: Caller, provider_id: ProviderId, body: ModelProviderChange, request: Request, models: Models
) -> ModelProviderView:
    add_audit_detail(request, fields=sorted(body.model_fields_set))
    changed = await models.providers.update(
        caller,
        provider_id,
        name=body.name,
        base_url=body.base_url,
        key=to_secret(body.key) if "key" in body.model_fields_set else providers.UNCHANGED,
        models=body.models,
        prices=body.prices,
        check=models.check_provider if body.test else None,
    )
    return ModelProviderView.model_validate(changed)


@router.delete("/model-providers/{provider_id}", name="model_provider.delete", status_code=204)
async def delete(caller: Caller, provider_id: ProviderId, models: Models) -> None:
    """Delete a provider. Its recorded usage is kept."""
    await models.providers.delete(caller, provider_id)


@router.post(
    "/model-providers/{provider_id}/test",
    name="model_provider.test",
    dependencies=[limit_rate("execute"), limit_remote_requests()],
)
async def test(caller: Caller, provider_id: ProviderId, models: Models) -> ModelProviderTest:
    """Test the key: ask the first model for one word, or ask for the list of models."""
    return ModelProviderTest.model_validate(await models.test_provider(caller, provider_id))


@router.get("/usage", name="usage.get", dependencies=[limit_large_responses()])
async def usage(
    caller: Caller,
    models: Models,
    project_id: Annotated[str | None, Query(alias="projectId", max_length=40)] = None,
    task_id: Annotated[str | None, Query(alias="taskId", max_length=40)] = None,
    session_id: Annotated[str | None, Query(alias="sessionId", max_length=40)] = None,
    since: Annotated[Moment | None, Query(description="Only requests at or after this time.")] = None,
) -> UsageView:
    """Get model usage, in total and by model. Without a filter: of everything you may see."""
    spent, by_model = await models.make_report(
        caller, session_id=session_id, task_id=task_id, project_id=project_id, since=since
    )
    return UsageView(
        **_to_sums(spent), models=[UsageOfModel(model=model, **_to_sums(of_model)) for model, of_model in by_model]
    )


@router.get("/usage/days", name="usage.days", response_model=UsageDays, dependencies=[limit_large_responses()])
async def usage_days(
    caller: Caller,
    models: Models,
    project_id: Annotated[str | None, Query(alias="projectId", max_length=40)] = None,
    since: Annotated[Moment | None, Query(description="Only requests at or after this time.")] = None,
) -> Response:
    """Get usage by day, project and model, newest day first. Days without requests are left out."""
    days, truncated = await models.list_days(caller, project_id=project_id, since=since)
    chunks: list[bytes] = []
    for start in range(0, len(days), ITEMS_AT_ONCE):
        await take_turn()  # there may be ten thousand
        items = [
            UsageOfDay(day=day.day, project_id=day.project_id, model=day.model, **_to_sums(day.spent))
            for day in days[start : start + ITEMS_AT_ONCE]
        ]
        chunks.append(_DAYS.dump_json(items, by_alias=True)[1:-1])
    body = b'{"items":[%b],"truncated":%b}' % (b",".join(chunks), b"true" if truncated else b"false")
    return Response(body, media_type="application/json")


_DAYS = TypeAdapter(list[UsageOfDay])
ITEMS_AT_ONCE = 100
_SUMS = tuple(UsageSums.model_fields)


def _to_sums(spent: UsageTotals) -> dict[str, Any]:
    return {name: getattr(spent, name) for name in _SUMS}
