"""Request types for branch, tag and commit names, and for paths in a repository."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, Field

from sandyard.platform.domain.repositories.ref_names import (
    COMMIT_ID,
    MAX_NAME_LENGTH,
    find_name_error,
    find_revision_error,
)

MAX_PATHS, MAX_PATH = 10_000, 4096


def _make_validator(rule: Callable[[str], str | None]) -> AfterValidator:
    def check(name: str) -> str:
        error = rule(name)
        if error is not None:
            raise ValueError(error)
        return name

    return AfterValidator(check)


Branch = Annotated[
    str, Field(min_length=1, max_length=MAX_NAME_LENGTH, examples=["main"]), _make_validator(find_name_error)
]
Tag = Annotated[
    str, Field(min_length=1, max_length=MAX_NAME_LENGTH, examples=["v1.2.0"]), _make_validator(find_name_error)
]
Revision = Annotated[
    str, Field(min_length=1, max_length=MAX_NAME_LENGTH, examples=["main"]), _make_validator(find_revision_error)
]
"""A branch, a tag or a commit."""
Against = Annotated[str, Field(max_length=64, pattern=rf"^(base|head|{COMMIT_ID.pattern})$", examples=["base"])]
"""`base`, `head` or a commit."""
RepositoryPath = Annotated[str, Field(min_length=1, max_length=MAX_PATH)]
RepositoryPaths = Annotated[list[RepositoryPath], Field(max_length=MAX_PATHS, fail_fast=True)]
"""Validation stops at the first invalid path, instead of reporting thousands."""
