"""Common JSON types of the API: camelCase names, UTC times with a Z, no NUL characters, no unknown fields in requests."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Path
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer, model_validator
from pydantic.alias_generators import to_camel

from sandyard.kit.times import rfc3339


class Model(BaseModel):
    """Base of every response. Reads the attributes of rows and dataclasses by their own names."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, from_attributes=True)


class Input(Model):
    """Base of every request body. Rejects unknown fields and text that a database cannot store."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_text(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > _MAX_FIELDS:  # otherwise each of them would produce an error
            raise ValueError(f"Must not have more than {_MAX_FIELDS} fields")
        if not _is_storable(data):
            raise ValueError("Must not contain NUL characters or lone surrogates")
        return data


Instant = Annotated[
    datetime, PlainSerializer(rfc3339, return_type=str, when_used="json"), Field(examples=["2026-01-31T10:00:00.123Z"])
]
"""A time in a response."""


def _check_year(moment: datetime) -> datetime:
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise ValueError(f"Must be between the years {_FIRST_YEAR} and {_LAST_YEAR}")
    return moment.astimezone(UTC)


_FIRST_YEAR, _LAST_YEAR = 1970, 9998
Moment = Annotated[AwareDatetime, AfterValidator(_check_year), Field(examples=["2026-01-31T10:00:00Z"])]
"""A time with time zone in a request, bounded so that arithmetic does not overflow."""


def id_in_path(what: str, example: str) -> Any:
    """Return a path parameter for an id. A malformed id gives 404, like an unknown one."""
    return Path(description=f"The {what}'s id.", examples=[example])


def example(**values: Any) -> ConfigDict:
    """Return a `model_config` with an example for the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [values]})


def _is_storable(data: Any, depth: int = 0) -> bool:
    if isinstance(data, str):
        return "\0" not in data and (data.isascii() or not _SURROGATE.search(data))
    if depth > _MAX_DEPTH:
        return False
    if isinstance(data, dict):
        return all(_is_storable(key) and _is_storable(value, depth + 1) for key, value in data.items())
    return not isinstance(data, list) or all(_is_storable(value, depth + 1) for value in data)


_MAX_DEPTH, _MAX_FIELDS = 50, 200
_SURROGATE = re.compile("[\ud800-\udfff]")
