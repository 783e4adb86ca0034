from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandyard.engine.interpreter import specs


def write_kernel_spec(root: Path, name: str, **spec: object) -> None:
    folder = root / "kernels" / name
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))


def test_kernels_are_found_by_name_and_language(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    write_kernel_spec(far, "python3", argv=["far"], language="python", metadata={"forked": "python"})
    write_kernel_spec(near, "python3", argv=["near", "{resource_dir}/x"], language="python", env={"A": "b"})
    write_kernel_spec(far, "ir", argv=["R"], language="R", interrupt_mode="message")
    write_kernel_spec(far, "broken", argv=[])
    (far / "kernels/none").mkdir()
    installed = specs.list_installed([near, far, tmp_path / "missing"])
    assert [spec.name for spec in installed] == ["python3", "ir"]
    python = specs.find("python", installed)
    assert python.argv == ("near", f"{near}/kernels/python3/x")
    assert (python.env, python.forked) == ({"A": "b"}, None)
    assert specs.find("r", installed).interrupt_by_message
    assert specs.find("ir", installed).name == "ir"
    with pytest.raises(specs.UnknownLanguageError, match=r"'java'.*Installed: python, r\.") as unknown:
        specs.find("java", installed)
    assert unknown.value.language == "java", "the engine can add this language"
    with pytest.raises(specs.UnknownLanguageError) as unknown:
        specs.find("cobol", installed)
    assert unknown.value.language is None


@pytest.mark.parametrize(
    ("given", "expected"), [(None, "python"), ("", "python"), (" JS ", "javascript"), ("ts", "typescript"), ("R", "r")]
)
def test_language_names_are_normalised(given: str | None, expected: str) -> None:
    assert specs.normalise(given) == expected
