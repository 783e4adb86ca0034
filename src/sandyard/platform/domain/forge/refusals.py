"""What GitHub says when it refuses, as errors that say what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sandyard.kit import bounded_json
from sandyard.platform.domain.forge.errors import (
    ForgeError,
    ForgeForbiddenError,
    ForgeInvalidError,
    ForgeNotFoundError,
    ForgeRefusedError,
    ForgeUnauthorizedError,
    ForgeUnreachableError,
)

_WORDS = 600
_LARGEST, _VALUES = 1 << 20, 10_000
_NEEDED = "'Contents: read and write' and 'Pull requests: read and write'"


def words(content: bytes) -> str:
    """GitHub's own, on one line; empty when it said nothing. What is no JSON is somebody else's page, and not repeated."""
    try:
        said = bounded_json.parse(content, largest=_LARGEST, values=_VALUES)
    except ValueError:
        return ""
    if not isinstance(said, dict):
        return ""
    found = [_text(said.get("message")), *_details(said.get("errors"))]
    if found[0].lower() in ("validation failed", "") and len(found) > 1:
        found = found[1:]
    return "; ".join(dict.fromkeys(part for part in found if part))[:_WORDS]


def _details(errors: Any) -> list[str]:
    if isinstance(errors, str):
        return [_text(errors)]
    found = []
    for error in errors[:10] if isinstance(errors, list) else []:
        if not isinstance(error, dict):
            found.append(_text(error))
        elif error.get("message"):
            found.append(_text(error["message"]))
        else:
            parts = [_text(error.get(name)) for name in ("field", "code", "value")]
            found.append(" ".join(part for part in parts if part))
    return found


def _text(value: Any) -> str:
    """GitHub ends some of its sentences with a full stop and some not."""
    return " ".join(value.split()).rstrip(".")[:_WORDS] if isinstance(value, str) else ""


def refusal(status: int, headers: Mapping[str, str], said: str) -> ForgeError:
    """The error for an answer of this status that is no rate limit. `said` are its words."""
    quoted = f' It says: "{said}".' if said else ""
    reason = said or "it does not say why"
    match status:
        case 401:
            error: ForgeError = ForgeUnauthorizedError(
                "GitHub does not accept the credential: it is expired, revoked or mistyped. Enter a new one." + quoted
            )
        case 403:
            error = ForgeForbiddenError(_forbidden(headers, said) + quoted)
        case 404:
            error = ForgeNotFoundError(
                "GitHub has no such repository or pull request, or the credential may not see it. Look whether the "
                "repository's address is right and whether the credential was given access to it." + quoted
            )
        case 405 | 409:
            error = ForgeRefusedError(f"GitHub refuses: {reason}.")
        case 422:
            error = ForgeInvalidError(f"GitHub does not accept this: {reason}.")
        case _ if status >= 500:
            error = ForgeUnreachableError(f"GitHub has a fault of its own ({status}). Nothing was lost; try again.")
        case _:
            error = ForgeError(f"GitHub answered {status}.{quoted}")
    return error


def _forbidden(headers: Mapping[str, str], said: str) -> str:
    if "x-github-sso" in headers:
        return (
            "The organisation demands single sign-on, and the project's token was not authorised for it. Open the token in GitHub's "
            "settings, choose 'Configure SSO' and authorise it for the organisation."
        )
    if "archived" in said.lower():
        return "The repository is archived: nothing in it can be changed."
    needed = _permissions(headers.get("x-accepted-github-permissions", "")) or _NEEDED
    return f"The credential may not do this. It needs {needed} on this repository."


def _permissions(header: str) -> str:
    """`pull_requests=write,contents=read; issues=write` (alternatives after a semicolon) as GitHub's settings name them."""
    choices = []
    for choice in header[:_WORDS].split(";")[:3]:
        pairs = re.findall(r"([a-z_]+)=([a-z]+)", choice)
        named = [f"'{name.replace('_', ' ').capitalize()}: {level}'" for name, level in pairs]
        if named:
            choices.append(" and ".join(named))
    return ", or ".join(choices)


def graphql_words(said: Mapping[str, Any]) -> tuple[str, str]:
    """The type and the words of the errors in a GraphQL answer, which is a 200 also when it failed; empty when there are none."""
    errors = said.get("errors")
    if not isinstance(errors, list) or not errors:
        return "", ""
    first = errors[0] if isinstance(errors[0], dict) else {}
    return str(first.get("type") or "UNKNOWN")[:60], "; ".join(_details(errors))[:_WORDS]
