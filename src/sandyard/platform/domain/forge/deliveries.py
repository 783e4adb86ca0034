"""Parse a webhook delivery: which repository it comes from, and which pull requests or issue it is about."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from sandyard.kit import bounded_json
from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.platform.db.models import Project
from sandyard.platform.domain.forge.github_responses import as_number, as_text, as_url, get_login
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.repositories.remote import parse_remote

Payload = dict[str, Any]
MAX_BYTES, MAX_VALUES = 5 << 20, 200_000
"""Maximum bytes and JSON values of a delivery. A delivery with few values may have long texts, which cost little."""
MAX_ISSUE_CHARACTERS = 50_000
MAX_REPOSITORIES, _MAX_MATCHES = 20, 60
"""Maximum number of repositories a delivery may name, and of matches of the key that are examined."""
# Keys are found by this text. It cannot occur inside a JSON string, where quotation marks are escaped.
_KEY, _KEY_IN_FORM = b'full_name":', b"full_name%22%3A"
_NAME_PATTERN = re.compile(rb'full_name":\s{0,20}"([!#-\[\]-~]{3,300})"')
_INVALID_CHARACTERS = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a delivery: the properties that identify its pull requests, or the issue that becomes a task."""

    numbers: frozenset[int] = frozenset()
    commits: frozenset[str] = frozenset()
    branches: frozenset[str] = frozenset()
    issue: LabelledIssue | None = None


@dataclass(frozen=True, slots=True)
class LabelledIssue:
    """An open issue that was labelled. Title, body and author are untrusted."""

    number: int
    label: str
    title: str
    body: str
    author: str
    url: str | None

    def is_wanted_by(self, project: Project) -> bool:
        """Return whether the project turns issues with this label into tasks. Case-insensitive, like on the forge."""
        wanted = ProjectSettings.from_project(project).tasks.issue_label
        return wanted is not None and wanted.casefold() == self.label.casefold()


@dataclass(frozen=True, slots=True)
class Sender:
    """The repository that sent a delivery: its name in lowercase, and the hosts of its pages and its API."""

    slug: str
    hosts: frozenset[str]

    def belongs_to(self, project: Project) -> bool:
        """Return whether this is the project's repository. Some host must match too, because other forges may have the same name."""
        if get_slug(project.repository) != self.slug:
            return False
        remote = parse_remote(project.repository or "")
        host = _get_host(f"//{remote.host}") if remote.host else None
        return bool({host, _get_host(ProjectSettings.from_project(project).forge.api_url)} & self.hosts)


@functools.lru_cache(maxsize=1000)
def get_slug(repository: str | None) -> str | None:
    """Return the repository's slug in lowercase. Cached, because it is called for many projects of one repository."""
    try:
        slug = parse_remote(repository or "").slug
    except SandyardError:
        return None
    return None if slug is None else slug.lower()


def find_repository_names(content_type: str, body: bytes) -> frozenset[str]:
    """Return all repository names in the body, in lowercase, without parsing it, because its signature is not verified yet.

    The result is cheap to get and only decides whose secrets to try.
    """
    form, found, position = _is_form(content_type), set[str](), -1
    key = _KEY_IN_FORM if form else _KEY
    for _ in range(_MAX_MATCHES):
        position = body.find(key, position + 1)
        if position < 0 or len(found) == MAX_REPOSITORIES:
            break
        piece = body[position : position + 1100]
        match = _NAME_PATTERN.match(unquote_to_bytes(piece.replace(b"+", b" ")) if form else piece)
        if match is not None:
            found.add(match[1].decode().lower())
    return frozenset(found)


def parse_payload(content_type: str, body: bytes) -> Payload:
    """Parse either format that GitHub can be configured to send. Raises InvalidInputError."""
    try:
        decoded = body.decode()
        if _is_form(content_type):
            decoded = parse_qs(decoded, strict_parsing=True, max_num_fields=10)["payload"][0]
        payload = bounded_json.parse(decoded, largest=MAX_BYTES, values=MAX_VALUES)
    except bounded_json.TooManyValuesError as error:
        raise InvalidInputError(f"The delivery cannot be parsed: {error}.") from None
    except (ValueError, KeyError):
        raise InvalidInputError("The delivery is not JSON.") from None
    if not isinstance(payload, dict):
        raise InvalidInputError("The delivery is not a JSON object.")
    return payload


def parse_sender(payload: Payload) -> Sender:
    """Return the sending repository. Raises InvalidInputError if it is missing or invalid."""
    name = _get_nested(payload, "repository", "full_name")
    if not isinstance(name, str) or not 3 <= len(name) <= 300 or _INVALID_CHARACTERS.search(name):
        raise InvalidInputError("The delivery names no repository.")
    hosts = {_get_host(_get_nested(payload, "repository", key)) for key in ("html_url", "url")}
    return Sender(name.lower(), frozenset(host for host in hosts if host is not None))


def parse_subject(event: str, payload: Payload) -> Subject | None:
    """Return the subject of the delivery; None if it is not relevant."""
    parse_event = _PARSERS.get(event)
    return None if parse_event is None else parse_event(payload)


def _parse_push(payload: Payload) -> Subject:
    ref = _get_nested(payload, "ref")
    return Subject(branches=_keep_names([ref.removeprefix("refs/heads/")] if isinstance(ref, str) else []))


def _parse_pull_request(payload: Payload) -> Subject:
    return Subject(numbers=_keep_numbers([_get_nested(payload, "pull_request", "number")]))


def _parse_issue_comment(payload: Payload) -> Subject | None:
    if _get_nested(payload, "issue", "pull_request") is None:
        return None  # an issue that is not a pull request
    return Subject(numbers=_keep_numbers([_get_nested(payload, "issue", "number")]))


def _parse_issue(payload: Payload) -> Subject | None:
    if _get_nested(payload, "action") != "labeled":
        return None
    found = parse_labelled_issue(_get_nested(payload, "issue"), as_text(_get_nested(payload, "label", "name"), 100))
    return None if found is None else Subject(issue=found)


def parse_labelled_issue(issue: Any, label: str) -> LabelledIssue | None:
    """Return an open issue; None for anything else, including pull requests."""
    number = as_number(_get_nested(issue, "number"))
    if (
        number is None
        or not label
        or _get_nested(issue, "pull_request") is not None
        or _get_nested(issue, "state") == "closed"
    ):
        return None
    return LabelledIssue(
        number=number,
        label=label,
        title=as_text(_get_nested(issue, "title"), 1000),
        body=as_text(_get_nested(issue, "body"), MAX_ISSUE_CHARACTERS),
        author=get_login(_get_nested(issue, "user")),
        url=as_url(_get_nested(issue, "html_url")),
    )


def _make_check_parser(key: str) -> Callable[[Payload], Subject]:
    def parse_check(payload: Payload) -> Subject:
        pulls = _get_nested(payload, key, "pull_requests")
        numbers = [_get_nested(pull, "number") for pull in pulls] if isinstance(pulls, list) else []
        return Subject(numbers=_keep_numbers(numbers), commits=_keep_names([_get_nested(payload, key, "head_sha")]))

    return parse_check


_PARSERS: Mapping[str, Callable[[Payload], Subject | None]] = {
    "ping": lambda payload: Subject(),
    "issues": _parse_issue,
    "push": _parse_push,
    "pull_request": _parse_pull_request,
    "pull_request_review": _parse_pull_request,
    "pull_request_review_comment": _parse_pull_request,
    "issue_comment": _parse_issue_comment,
    "check_run": _make_check_parser("check_run"),
    "check_suite": _make_check_parser("check_suite"),
    "status": lambda payload: Subject(commits=_keep_names([_get_nested(payload, "sha")])),
}


def _get_nested(value: Any, *keys: str) -> Any:
    """Return the value at a path of keys; None if a part of the path is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _keep_numbers(values: list[Any]) -> frozenset[int]:
    return frozenset(value for value in values if type(value) is int and 0 < value < 1 << 31)


def _keep_names(values: list[Any]) -> frozenset[str]:
    """Return the values that are strings and not too long for our columns. Raises InvalidInputError for invalid characters."""
    names = [value for value in values if isinstance(value, str)]
    if any(_INVALID_CHARACTERS.search(name) for name in names):
        raise InvalidInputError("The delivery contains characters that are not allowed in names.")
    return frozenset(name for name in names if 0 < len(name) <= 250)


def _is_form(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/x-www-form-urlencoded"


def _get_host(url: Any) -> str | None:
    try:
        return urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:
        return None
