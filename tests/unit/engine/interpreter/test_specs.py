from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandyard.engine.interpreter import specs


def put(place: Path, name: str, **spec: object) -> None:
    folder = place / "kernels" / name
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))


def test_kernels_are_found_by_name_and_language(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    put(far, "python3", argv=["far"], language="python", metadata={"forked": "python"})
    put(near, "python3", argv=["near", "{resource_dir}/x"], language="python", env={"A": "b"})
    put(far, "ir", argv=["R"], language="R", interrupt_mode="message")
    put(far, "broken", argv=[])
    (far / "kernels/none").mkdir()
    found = specs.list_installed([near, far, tmp_path / "missing"])
    assert [spec.name for spec in found] == ["python3", "ir"]
    python = specs.find("python", found)
    assert python.argv == ("near", f"{near}/kernels/python3/x")
    assert (python.env, python.forked) == ({"A": "b"}, None)
    assert specs.find("r", found).by_message
    assert specs.find("ir", found).name == "ir"
    with pytest.raises(specs.UnknownLanguageError, match=r"'java'.*Installed: python, r\.") as unknown:
        specs.find("java", found)
    assert unknown.value.language == "java", "which the engine can add"
    with pytest.raises(specs.UnknownLanguageError) as unknown:
        specs.find("cobol", found)
    assert unknown.value.language is None


@pytest.mark.parametrize(
    ("given", "meant"), [(None, "python"), ("", "python"), (" JS ", "javascript"), ("ts", "typescript"), ("R", "r")]
)
def test_names_of_languages(given: str | None, meant: str) -> None:
    assert specs.normalise(given) == meant
