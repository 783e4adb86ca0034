"""Well-known providers: their addresses, models and prices, from `presets.json`.

Prices are list prices in US dollars per million tokens on the date in `taken`. If a provider charges more for long prompts, they are those
for short ones.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.models import addresses
from sandyard.platform.domain.models.apis import SUPPORTED_APIS
from sandyard.platform.domain.models.model import ModelApi, ModelUser, Price, parse_price


class Preset(BaseModel):
    """A well-known provider. If `models` is empty, the server at that address is asked for its list."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    name: str
    title: str
    kind: ModelApi
    base_url: str
    key_required: bool
    key_url: str | None
    models: tuple[str, ...]
    prices: Mapping[str, Price]

    def serves(self, profile: ModelUser) -> bool:
        """Return whether this agent can use it."""
        return any(api in SUPPORTED_APIS[self.kind] for api in profile.apis)


class _File(BaseModel):
    taken: date
    presets: tuple[Preset, ...]


@functools.cache
def _load() -> _File:
    return _File.model_validate_json((Path(__file__).parent / "presets.json").read_text())


def list_presets() -> tuple[Preset, ...]:
    """Return the presets in display order."""
    return _load().presets


def get_price_date() -> date:
    return _load().taken


def get_preset(name: str) -> Preset:
    """Return the preset. Raises InvalidInputError, which lists the available ones."""
    for preset in list_presets():
        if preset.name == name:
            return preset
    names = ", ".join(preset.name for preset in list_presets())
    raise InvalidInputError(f"There is no preset {name[:60]!r}. Available: {names}.")


def find_preset(base_url: str) -> Preset | None:
    """Return the well-known provider at this address. None for one on this machine, whose port says little."""
    if addresses.is_local(base_url):
        return None
    server = addresses.get_server(base_url)
    return next((preset for preset in list_presets() if addresses.get_server(preset.base_url) == server), None)


def find_price(base_url: str, prices: Mapping[str, Any], model: str | None) -> Price | None:
    """Return the price of a model at a provider: from `prices`, or else the known price at this address."""
    price = parse_price(prices, model)
    if price is None and (preset := find_preset(base_url)) is not None:
        price = parse_price(preset.prices, model)
    return price
