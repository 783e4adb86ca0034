from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from sandyard.engine.interpreter import contexts
from sandyard.engine.interpreter.contexts import Contexts, FullError


def test_the_number_of_contexts_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts.specs, "find", Mock())
    monkeypatch.setattr(contexts, "MAX_CONTEXTS", 2)
    limited_contexts = Contexts(tmp_path, Mock(), Mock())
    python = limited_contexts.get_default("python")
    limited_contexts.get_default("bash")
    with pytest.raises(FullError, match="Remove one"):
        limited_contexts.get_default("javascript")
    limited_contexts.remove(python.id)
    limited_contexts.get_default("javascript")
