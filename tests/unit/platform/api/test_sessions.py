"""Validation of the fields of a session."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sandyard.platform.api.mcp.sessions import CreateSession
from sandyard.platform.api.sessions import NewSession, SessionChange


@pytest.mark.parametrize("fields", [NewSession, SessionChange, CreateSession])
def test_title_is_one_line_without_control_characters(
    fields: type[NewSession | SessionChange | CreateSession],
) -> None:
    assert fields.model_validate({"title": "a\nb\x1b c\u202e"}).title == "a b c"
    with pytest.raises(ValidationError):
        fields.model_validate({"title": "\n\x1b"})
