from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from sandyard.engine.interpreter import contexts
from sandyard.engine.interpreter.contexts import Contexts, FullError


def test_there_is_an_end_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts.specs, "find", Mock())
    monkeypatch.setattr(contexts, "MOST", 2)
    made = Contexts(tmp_path, Mock(), Mock())
    python = made.default("python")
    made.default("bash")
    with pytest.raises(FullError, match="Remove one"):
        made.default("javascript")
    made.remove(python.id)
    made.default("javascript")
