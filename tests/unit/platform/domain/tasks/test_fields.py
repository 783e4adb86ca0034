"""Validation of the fields of a task."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sandyard.platform.domain.tasks.fields import TaskFields


def test_title_is_one_line_without_control_characters() -> None:
    assert (
        TaskFields(title="Mend\x1b]0;x\x07 the\n\nlogin\u202e \u2028now 👩‍💻").title == "Mend ]0;x the login now 👩‍💻"
    )
    with pytest.raises(ValidationError):
        TaskFields(title="\x1b\x07\u202e")
