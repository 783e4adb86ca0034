"""Types for models: where they are, what they cost, and what was spent on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.kit.secret import Secret

MICROS = 1_000_000
MAX_TOKENS = 10**9
"""Maximum of each count of one request, far above what any model can use. Larger numbers are reduced to it."""
MAX_COST_MICROS = 10**15
"""Maximum cost of one request."""


class ModelApi(StrEnum):
    """The API of a model."""

    ANTHROPIC = "anthropic"  # POST /v1/messages
    OPENAI = "openai"  # POST /v1/responses
    OPENAI_CHAT = "openai_chat"  # POST /v1/chat/completions
    GEMINI = "gemini"  # POST /v1beta/models/…:streamGenerateContent


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """The model as an agent reaches it: an address inside the sandbox, and a capability in place of an API key."""

    api: ModelApi
    base_url: str  # without the version path of the API, as in http://127.0.0.1:4100/prv_…
    capability: Secret
    model: str | None


class ModelUser(Protocol):
    """The fields of an agent that the choice of its model depends on."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def apis(self) -> tuple[ModelApi, ...]:
        """The model APIs it supports, best first. Empty if it needs no model."""

    @property
    def models(self) -> tuple[str, ...]:
        """Models it is known to work with. Others may be used."""


class NoModelError(ConflictError):
    """No model is configured that this agent can use. `preset`: the only one that would change that."""

    code = "no_model"

    def __init__(self, message: str | None = None, *, preset: str | None = None) -> None:
        super().__init__(message)
        self._preset = preset

    @property
    def extra(self) -> Mapping[str, object]:
        return {} if self._preset is None else {"preset": self._preset}


class ModelUnknownError(NoModelError):
    """None of the providers that this agent can use has the model."""

    code = "model_unknown"


class OverBudgetError(SandyardError):
    """The budget for models is used up."""

    code, status = "over_budget", 402


class PriceMissingError(OverBudgetError):
    """There is a budget in dollars, but the price of this model is unknown."""

    code = "price_missing"


class Price(BaseModel):
    """US dollars per million tokens. Cache reads and writes cost the same as other tokens unless set."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    input: float = Field(ge=0, le=100_000)
    output: float = Field(ge=0, le=100_000)
    cache_read: float | None = Field(default=None, ge=0, le=100_000)
    cache_write: float | None = Field(default=None, ge=0, le=100_000)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one response, as reported by the provider. `input` includes cache reads and writes. None means not reported."""

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None

    @property
    def known(self) -> bool:
        return self.input is not None or self.output is not None


def parse_price(prices: Mapping[str, Any], model: str | None) -> Price | None:
    """Return the model's own price, or else that of the longest matching prefix (`name*`). None means unknown."""
    matching = [
        name for name in prices if name == model or (name.endswith("*") and (model or "").startswith(name[:-1]))
    ]
    if not matching:
        return None
    return Price.model_validate(prices[max(matching, key=lambda name: (name == model, len(name)))])


def compute_cost(price: Price | None, tokens: Tokens) -> int | None:
    """Return the cost in millionths of a US dollar: the price of a million tokens in dollars is that of one token."""
    if price is None or not tokens.known:
        return None
    read, written = tokens.cache_read or 0, tokens.cache_write or 0
    plain = max(0, (tokens.input or 0) - read - written)
    cost = plain * price.input + (tokens.output or 0) * price.output
    cost += read * (price.input if price.cache_read is None else price.cache_read)
    cost += written * (price.input if price.cache_write is None else price.cache_write)
    return min(round(cost), MAX_COST_MICROS)


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Totals over requests. `cost_usd` is the known cost; None if no cost is known although there were responses.

    `unpriced` counts responses whose cost is not included, `estimated` requests whose cost is an estimate: they were stopped, broke off or
    are in progress, or their usage was not reported.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = 0.0
    unpriced: int = 0
    estimated: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """Usage of one model on one day (UTC) in one project. `project_id` None: sessions without a project, or with a deleted one."""

    day: date
    project_id: str | None
    model: str | None
    spent: UsageTotals


@dataclass(frozen=True, slots=True)
class ProviderInfo:
    """A provider without its key."""

    id: str
    project_id: str | None
    name: str
    kind: ModelApi
    base_url: str
    hint: str
    models: tuple[str, ...]
    prices: Mapping[str, Price]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Readiness:
    """The users and projects for which an agent has a usable provider.

    `everywhere`: one is available to all users, or the agent needs none. `projects`: those with their own.
    """

    everywhere: bool
    projects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProviderTestResult:
    """The result of a test. `detail` is a sentence. `cause`: why it failed. `models`: the provider's models, if requested."""

    ok: bool
    detail: str
    model: str | None
    duration_ms: int
    cause: str | None = None
    models: tuple[str, ...] = ()
