"""Suggest a command when a turn, a task or a test failed because of its model. The web has buttons for the same error codes."""

from __future__ import annotations

NO_MODEL = "no_model"
_SET_KEY_COMMAND = "sandyard model set-key PROVIDER (list them with: sandyard model list)"
_TEST_COMMAND = "sandyard model test PROVIDER (list them with: sandyard model list)"
_ADVICE = {
    NO_MODEL: "To add a model provider: sandyard model add PROVIDER (list them with: sandyard model presets)",
    "model_key_refused": f"To change the API key: {_SET_KEY_COMMAND}",
    "model_quota_exceeded": f"To change the API key: {_SET_KEY_COMMAND}",
    "model_unknown": f"Choose another model with --model, or test the provider: {_TEST_COMMAND}",
    "model_unreachable": f"To test the provider: {_TEST_COMMAND}",
    "model_address_wrong": f"To test the provider: {_TEST_COMMAND}",
    "model_busy": "Try again later.",
}


def get_advice(code: object) -> str | None:
    """Return the advice for an error code, or None if there is none."""
    return _ADVICE.get(str(code))
