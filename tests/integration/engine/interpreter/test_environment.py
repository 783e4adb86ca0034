from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from sandyard.engine.interpreter import environment
from sandyard.engine.interpreter.kernels import environment as kernel_environment


def test_sandbox_variables_are_read_again_when_they_change(tmp_path: Path) -> None:
    file = tmp_path / "envs.json"
    sandbox = environment.Sandbox(file)
    assert sandbox.read_variables() == {}
    file.write_text(json.dumps({"A": "1"}))
    assert sandbox.read_variables() == {"A": "1"}
    file.write_text("{")  # still being written
    assert sandbox.read_variables() == {"A": "1"}
    file.write_text(json.dumps({"A": "2", "B": "3"}))
    assert sandbox.read_variables() == {"A": "2", "B": "3"}


def test_a_kernel_does_not_inherit_private_variables_of_the_server() -> None:
    os.environ["PRIVATE_TO_THE_SERVER"] = "1"
    try:
        env = environment.make_kernel_environment({"A": "1", "HOME": "/elsewhere"})
    finally:
        del os.environ["PRIVATE_TO_THE_SERVER"]
    assert "PRIVATE_TO_THE_SERVER" not in env
    assert (env["A"], env["HOME"], env["PATH"]) == ("1", "/elsewhere", os.environ["PATH"])


def test_code_to_set_and_unset_variables_is_generated_per_language() -> None:
    value = 'it\'s "x"\n$HOME\\'
    bash = environment.make_set_code("bash", {"A": value, "no good": "x"}) + '\nprintf %s "$A"\n'
    assert subprocess.run(["bash", "-c", bash], capture_output=True, text=True, check=True).stdout == value
    scope: dict[str, object] = {}
    before = os.environ.get("SET_BY_A_TEST")
    exec(environment.make_set_code("Python", {"SET_BY_A_TEST": value}), scope)
    assert os.environ["SET_BY_A_TEST"] == value
    exec(environment.make_unset_code("python", ["SET_BY_A_TEST"], {}), scope)
    assert os.environ.get("SET_BY_A_TEST") == before
    assert environment.make_set_code("r", {"A": "1"}) == 'Sys.setenv(A = "1")'
    assert environment.make_unset_code("r", ["A", "B"], {"B": "2"}) == 'Sys.unsetenv("A")\nSys.setenv(B = "2")'
    assert environment.make_set_code("typescript", {"A": "1"}) == 'process.env.A = "1"'
    assert environment.make_unset_code("typescript", ["A"], {}) == "delete process.env.A"
    assert environment.make_set_code("cobol", {"A": "1"}) == environment.make_unset_code("cobol", ["A"], {}) == ""


def test_variables_of_one_execution_are_restored_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"OURS": "changed by code", "THEIRS": "set by code"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NOBODYS", raising=False)
    once = dict.fromkeys(("OURS", "THEIRS", "NOBODYS"), "once")
    request = {"env_once": once, "env_back": {"OURS": "the sandbox's"}}
    restore = kernel_environment.apply({"metadata": {kernel_environment.KEY: request}})
    assert {name: os.environ.get(name) for name in once} == once
    restore()
    assert [os.environ.get(name) for name in once] == ["the sandbox's", "set by code", None]
