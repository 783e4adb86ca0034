"""Presets of well-known providers."""

from __future__ import annotations

import pytest

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.agents.profiles import BUILT_IN
from sandyard.platform.domain.models.model import Price, parse_price
from sandyard.platform.domain.models.presets import find_preset, find_price, get_preset, list_presets


def test_models_of_presets_have_prices() -> None:
    assert [item.name for item in list_presets()] == ["anthropic", "openai", "gemini", "openrouter", "ollama", "vllm"]
    for preset in list_presets():
        for model in preset.models or ("whatever-it-has",):
            assert parse_price(preset.prices, model) is not None, (preset.name, model)
    with pytest.raises(InvalidInputError, match="anthropic, openai"):
        get_preset("nobody")


def test_every_agent_has_preset_and_price_of_default_model() -> None:
    for profile in BUILT_IN.values():
        if profile.apis:
            serving = [preset for preset in list_presets() if preset.serves(profile)]
            assert serving, profile.name
            assert any(parse_price(preset.prices, profile.models[0]) for preset in serving), profile.name
    assert [candidate.name for candidate in list_presets() if candidate.serves(BUILT_IN["claude"])] == ["anthropic"]


def test_finds_price_by_address() -> None:
    anthropic = "https://api.anthropic.com"
    known = find_price(anthropic, {}, "claude-sonnet-5-5")
    assert known is not None
    assert (known.input, known.output) == (2, 10)
    assert find_price(anthropic, {"claude-*": {"input": 7, "output": 8}}, "claude-sonnet-5-5") == Price(
        input=7, output=8
    )
    assert find_price("https://proxy.example.org", {}, "claude-sonnet-5-5") is None
    assert find_price("http://127.0.0.1:11434/v1", {}, "qwen3-coder") is None  # a port does not identify a provider
    assert find_price(anthropic, {}, "unheard-of") is None
    found = find_preset("https://openrouter.ai/api/v1")
    assert found is not None
    assert found.title == "OpenRouter"
