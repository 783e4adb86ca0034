"""What a webhook's delivery says, read with care: which repository it comes from, and which pull requests it speaks of."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.platform.db.models import Project
from sandyard.platform.domain.git.remote import parse
from sandyard.platform.domain.projects.model import ProjectSettings

Payload = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """What a delivery speaks of, as far as it helps to find pull requests."""

    numbers: frozenset[int] = frozenset()
    commits: frozenset[str] = frozenset()
    branches: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Sender:
    """A repository: its name in small letters, and the hosts of its pages and of its API."""

    slug: str
    hosts: frozenset[str]

    def belongs_to(self, project: Project) -> bool:
        try:
            remote = parse(project.repository or "")
        except SandyardError:
            return False
        if remote.slug is None or remote.slug.lower() != self.slug:
            return False
        host = _host(f"//{remote.host}") if remote.host else None
        return bool({host, _host(ProjectSettings.of(project).forge.api_url)} & self.hosts)


def payload_of(content_type: str, body: bytes) -> Payload:
    """Of either form that GitHub can be set to. InvalidInputError for what is neither."""
    try:
        text = body.decode()
        if content_type.partition(";")[0].strip().lower() == "application/x-www-form-urlencoded":
            text = parse_qs(text, strict_parsing=True, max_num_fields=10)["payload"][0]
        payload = json.loads(text)
    except (ValueError, KeyError, RecursionError):
        raise InvalidInputError("The delivery is not JSON.") from None
    if not isinstance(payload, dict):
        raise InvalidInputError("The delivery is not a JSON object.")
    return payload


def repository_of(payload: Payload) -> Sender | None:
    name = _at(payload, "repository", "full_name")
    if not isinstance(name, str) or not 3 <= len(name) <= 300 or "\0" in name:
        return None
    hosts = {_host(_at(payload, "repository", key)) for key in ("html_url", "url")}
    return Sender(name.lower(), frozenset(host for host in hosts if host is not None))


def subject_of(event: str, payload: Payload) -> Subject | None:
    """None for what is not followed."""
    reader = _READERS.get(event)
    return None if reader is None else reader(payload)


def _push(payload: Payload) -> Subject:
    ref = _at(payload, "ref")
    return Subject(branches=_words([ref.removeprefix("refs/heads/")] if isinstance(ref, str) else []))


def _pull_request(payload: Payload) -> Subject:
    return Subject(numbers=_numbers([_at(payload, "pull_request", "number")]))


def _issue_comment(payload: Payload) -> Subject | None:
    if _at(payload, "issue", "pull_request") is None:
        return None  # an issue is none
    return Subject(numbers=_numbers([_at(payload, "issue", "number")]))


def _check(key: str) -> Callable[[Payload], Subject]:
    def read(payload: Payload) -> Subject:
        pulls = _at(payload, key, "pull_requests")
        numbers = [_at(pull, "number") for pull in pulls] if isinstance(pulls, list) else []
        return Subject(numbers=_numbers(numbers), commits=_words([_at(payload, key, "head_sha")]))

    return read


_READERS: Mapping[str, Callable[[Payload], Subject | None]] = {
    "ping": lambda payload: Subject(),
    "push": _push,
    "pull_request": _pull_request,
    "pull_request_review": _pull_request,
    "pull_request_review_comment": _pull_request,
    "issue_comment": _issue_comment,
    "check_run": _check("check_run"),
    "check_suite": _check("check_suite"),
    "status": lambda payload: Subject(commits=_words([_at(payload, "sha")])),
}


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _numbers(values: list[Any]) -> frozenset[int]:
    return frozenset(value for value in values if type(value) is int and 0 < value < 1 << 31)


def _words(values: list[Any]) -> frozenset[str]:
    return frozenset(
        value for value in values if isinstance(value, str) and 0 < len(value) <= 250 and "\0" not in value
    )


def _host(url: Any) -> str | None:
    try:
        return urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:
        return None
