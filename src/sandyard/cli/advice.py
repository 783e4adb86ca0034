"""What to type when a turn, a task or a test failed because of its model. The web has buttons for the same error codes."""

from __future__ import annotations

NO_MODEL = "no_model"
_KEY = "sandyard model set-key PROVIDER (sandyard model list shows them)"
_TEST = "sandyard model test PROVIDER (sandyard model list shows them)"
_ADVICE = {
    NO_MODEL: "To set one up: sandyard model add PROVIDER (sandyard model presets shows them)",
    "model_key_refused": f"To give it another key: {_KEY}",
    "model_quota_exceeded": f"To use another key: {_KEY}",
    "model_unknown": f"Name another model with --model, or look: {_TEST}",
    "model_unreachable": f"To try the provider: {_TEST}",
    "model_address_wrong": f"To try the provider: {_TEST}",
    "model_busy": "Try again later.",
}


def advice_for(code: object) -> str | None:
    """Return what to type for an error code, or None for a code without advice."""
    return _ADVICE.get(str(code))
