"""Suggest a command when a turn, a task or a test failed because of its model or its project's token.

The web has buttons for the same error codes.
"""

from __future__ import annotations

import shlex

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


_CREDENTIAL_CODES = {"remote_refused", "forge_unauthorized", "forge_forbidden"}
"""The remote or the forge did not accept the project's token or key."""


def get_advice(code: object, *, project_id: object = None, preset: object = None) -> str | None:
    """Return the advice for an error code, or None if there is none.

    `project_id` is the project of the task that failed, and `preset` the model provider that the error names as missing.
    """
    if code == NO_MODEL and isinstance(preset, str) and preset.isprintable():
        return f"To add the model provider: sandyard model add {shlex.quote(preset)}"
    if code in _CREDENTIAL_CODES and project_id is not None:
        return f"To replace the project's token or key: sandyard project token {shlex.quote(str(project_id))}"
    return _ADVICE.get(str(code))
