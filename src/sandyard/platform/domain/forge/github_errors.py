"""Convert GitHub's error responses into errors that say what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sandyard.kit import bounded_json
from sandyard.kit.secret import Secret
from sandyard.platform.domain.forge.errors import (
    ForgeError,
    ForgeForbiddenError,
    ForgeInvalidError,
    ForgeNotFoundError,
    ForgeRefusedError,
    ForgeUnauthorizedError,
    ForgeUnreachableError,
)
from sandyard.platform.domain.repositories.error_translation import clean_line

_MAX_MESSAGE_LENGTH = 600
_MAX_BYTES, _MAX_VALUES = 1 << 20, 10_000
_DEFAULT_PERMISSIONS = "'Contents: read and write' and 'Pull requests: read and write'"


def extract_message(content: bytes, token: Secret | None = None) -> str:
    """Return GitHub's message on one line, without the token; empty if there is none.

    Anything but JSON comes from another server and is not shown.
    """
    try:
        body = bounded_json.parse(content, largest=_MAX_BYTES, values=_MAX_VALUES)
    except ValueError:
        return ""
    if not isinstance(body, dict):
        return ""
    found = [_clean_text(body.get("message"), token), *_extract_details(body.get("errors"), token)]
    if found[0].lower() in ("validation failed", "") and len(found) > 1:
        found = found[1:]
    return "; ".join(dict.fromkeys(part for part in found if part))[:_MAX_MESSAGE_LENGTH]


def _extract_details(errors: Any, token: Secret | None) -> list[str]:
    if isinstance(errors, str):
        return [_clean_text(errors, token)]
    found = []
    for error in errors[:10] if isinstance(errors, list) else []:
        if not isinstance(error, dict):
            found.append(_clean_text(error, token))
        elif error.get("message"):
            found.append(_clean_text(error["message"], token))
        else:
            parts = [_clean_text(error.get(name), token) for name in ("field", "code", "value")]
            found.append(" ".join(part for part in parts if part))
    return found


def _clean_text(value: Any, token: Secret | None) -> str:
    """Return the text without the token, control characters, and a final full stop, which only some of GitHub's messages have."""
    if not isinstance(value, str):
        return ""
    # the token is removed after invisible characters that could be inside it, and before the text is cut, which could leave a part of it
    text = clean_line(value)
    text = text.replace(token.reveal(), "***") if token else text
    return " ".join(text.split()).rstrip(".")[:_MAX_MESSAGE_LENGTH]


def translate_error(status: int, headers: Mapping[str, str], message: str) -> ForgeError:
    """Return the error for a response of this status that is not a rate limit. `message` is the one in its body."""
    quoted = f' GitHub says: "{message}".' if message else ""
    reason = message or "no reason given"
    match status:
        case 401:
            error: ForgeError = ForgeUnauthorizedError(
                "GitHub rejected the credential: it is expired, revoked or mistyped. Enter a new one." + quoted
            )
        case 403:
            error = ForgeForbiddenError(_explain_forbidden(headers, message) + quoted)
        case 404:
            error = ForgeNotFoundError(
                "GitHub has no such repository or pull request, or the credential may not see it. Check the repository's URL "
                "and the credential's access to it." + quoted
            )
        case 405 | 409:
            error = ForgeRefusedError(f"GitHub rejected the request: {reason}.")
        case 422:
            error = ForgeInvalidError(f"GitHub rejected these values: {reason}.")
        case _ if status >= 500:
            error = ForgeUnreachableError(f"GitHub failed internally ({status}). Nothing was lost; try again.")
        case _:
            error = ForgeError(f"GitHub responded with {status}.{quoted}")
    return error


def _explain_forbidden(headers: Mapping[str, str], message: str) -> str:
    if "x-github-sso" in headers:
        return (
            "The organization requires single sign-on, and the project's token is not authorized for it. Open the token in "
            "GitHub's settings, choose 'Configure SSO' and authorize it for the organization."
        )
    if "archived" in message.lower():
        return "The repository is archived and read-only."
    needed = _format_permissions(headers.get("x-accepted-github-permissions", "")) or _DEFAULT_PERMISSIONS
    return f"The credential does not have permission for this. It needs {needed} on this repository."


def _format_permissions(header: str) -> str:
    """Return the permissions of a header like `pull_requests=write,contents=read; issues=write` as named in GitHub's settings.

    Alternatives follow a semicolon.
    """
    choices = []
    for choice in header[:_MAX_MESSAGE_LENGTH].split(";")[:3]:
        pairs = re.findall(r"([a-z_]+)=([a-z]+)", choice)
        named = [f"'{name.replace('_', ' ').capitalize()}: {level}'" for name, level in pairs]
        if named:
            choices.append(" and ".join(named))
    return ", or ".join(choices)


def extract_graphql_error(response: Mapping[str, Any]) -> tuple[str, str]:
    """Return type and message of the errors in a GraphQL response, which is a 200 even if it failed; empty if there are none."""
    errors = response.get("errors")
    if not isinstance(errors, list) or not errors:
        return "", ""
    first = errors[0] if isinstance(errors[0], dict) else {}
    return str(first.get("type") or "UNKNOWN")[:60], "; ".join(_extract_details(errors, None))[:_MAX_MESSAGE_LENGTH]
