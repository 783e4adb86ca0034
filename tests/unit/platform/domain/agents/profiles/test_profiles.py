"""Test how the built-in agents are started."""

from __future__ import annotations

import json
import tomllib
from types import ModuleType
from typing import Any

import pytest

from sandyard.kit.secret import Secret
from sandyard.platform.domain.agents.profiles import BUILT_IN, claude, codex, gemini, opencode
from sandyard.platform.domain.agents.profiles.base import BuiltInProfile, read_lock
from sandyard.platform.domain.agents.profiles.model import Launch, LaunchRequest, Profile, list_asking_modes
from sandyard.platform.domain.models.model import ModelApi, ModelEndpoint

HOME, FOLDER = "/home/user", '/home/user/work "space"'
REAL = [profile for profile in BUILT_IN.values() if not profile.demo]
PAIRS = [(profile, api) for profile in REAL for api in profile.apis]


def started(profile: Profile, api: ModelApi, model: str | None = None, wanted: str | None = None) -> Launch:
    endpoint = ModelEndpoint(api, "http://127.0.0.1:4100/prv_x", Secret("cap-1"), model)
    return profile.launch(LaunchRequest(HOME, FOLDER, model=wanted, endpoint=endpoint))


def words(launch: Launch) -> str:
    return "\n".join([*launch.argv, *launch.envs.values(), *(data.decode() for data in launch.files.values())])


@pytest.mark.parametrize(("profile", "api"), PAIRS, ids=lambda candidate: getattr(candidate, "name", candidate))
def test_configures_only_its_model(profile: Profile, api: ModelApi) -> None:
    launch = started(profile, api, "some-model", wanted="house/some-model")
    assert "http://127.0.0.1:4100/prv_x" in words(launch)
    assert "some-model" in words(launch)
    assert "house/" not in words(launch), "the provider's name is internal to the platform"
    assert "cap-1" in launch.envs.values()
    assert not any(b"cap-1" in data for data in launch.files.values()), "it is only in the environment"
    assert launch.argv[0].startswith(f"{HOME}/.sandyard/agents/")
    assert all(path.startswith(f"{HOME}/.sandyard/agents/") for path in launch.files), "does not touch the user's files"
    assert "HOME" not in launch.envs, "the agent's commands find the user's settings"


@pytest.mark.parametrize("profile", REAL, ids=lambda profile: profile.name)
def test_version_is_pinned_and_model_is_optional(profile: Profile) -> None:
    assert profile.install is not None
    assert profile.install.version in profile.launch(LaunchRequest(HOME, FOLDER)).argv[0]
    assert started(profile, profile.apis[0]).argv[0] == profile.launch(LaunchRequest(HOME, FOLDER)).argv[0]


def test_opencode_asks_before_changes() -> None:
    written, _ = started(BUILT_IN["opencode"], ModelApi.ANTHROPIC, "m").files.values()
    settings = json.loads(written)
    assert settings["permission"]["edit"] == settings["permission"]["bash"] == "ask"
    assert settings["enabled_providers"] == ["sandyard"]
    assert settings["provider"]["sandyard"]["options"]["baseURL"] == "http://127.0.0.1:4100/prv_x/v1"


def test_gemini_sends_command_output() -> None:
    """It sends no output over ACP for commands that run in a terminal."""
    files = started(BUILT_IN["gemini"], ModelApi.GEMINI, "m").files
    settings = json.loads(next(data for path, data in files.items() if path.endswith("settings.json")))
    assert settings["tools"]["shell"]["enableInteractiveShell"] is False


def codex_settings(launch: Launch) -> dict[str, Any]:
    return tomllib.loads(launch.files[f"{HOME}/.sandyard/agents/codex/config.toml"].decode())


def test_codex_trusts_its_folder() -> None:
    settings = codex_settings(started(BUILT_IN["codex"], ModelApi.OPENAI, 'a"b😀'))
    assert settings["projects"][FOLDER]["trust_level"] == "trusted"
    assert (settings["model"], settings["approval_policy"]) == ('a"b😀', "untrusted")


@pytest.mark.parametrize(("mode", "policy"), [(None, "untrusted"), ("ask", "untrusted"), ("full-access", "never")])
def test_codex_disables_own_sandbox_in_every_mode(mode: str | None, policy: str) -> None:
    endpoint = ModelEndpoint(ModelApi.OPENAI, "http://127.0.0.1:4100/prv_x", Secret("cap-1"), None)
    settings = codex_settings(BUILT_IN["codex"].launch(LaunchRequest(HOME, FOLDER, mode=mode, endpoint=endpoint)))
    assert (settings["approval_policy"], settings["sandbox_mode"]) == (policy, "danger-full-access")


@pytest.mark.parametrize("profile", REAL, ids=lambda profile: profile.name)
@pytest.mark.parametrize("mode", [None, "full-access", "yolo", "bypassPermissions"])
def test_every_agent_can_be_made_to_ask(profile: Profile, mode: str | None) -> None:
    """tests/acceptance/test_agents.py checks how the real programs interpret these files."""
    endpoint = ModelEndpoint(profile.apis[0], "http://127.0.0.1:4100/prv_x", Secret("cap-1"), None)
    asking = profile.launch(LaunchRequest(HOME, FOLDER, mode=mode, endpoint=endpoint, asks=True))
    free = profile.launch(LaunchRequest(HOME, FOLDER, endpoint=endpoint))
    assert asking.files.keys() == free.files.keys(), "a stricter start leaves no file behind"
    files = {path.rpartition("/")[2]: data.decode() for path, data in asking.files.items()}
    match profile.name:
        case "codex":
            settings = tomllib.loads(files["config.toml"])
            assert settings["approval_policy"] == "untrusted"
            assert settings["projects"][FOLDER]["trust_level"] == "untrusted", (
                "the repository's settings do not take precedence"
            )
            assert '"cat"' in files["sandyard.rules"]
        case "claude":
            assert {"Read", "Bash", "Edit"} <= set(json.loads(files["settings.json"])["permissions"]["ask"])
        case "gemini":
            assert [rule["decision"] for rule in tomllib.loads(files["sandyard.toml"])["rule"]] == ["ask_user"] * 2
        case "opencode":
            assert json.loads(asking.envs["OPENCODE_PERMISSION"]) == {"*": "ask"}
            assert asking.envs["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1", (
                "the repository's settings do not take precedence"
            )


def test_modes_in_which_agents_ask_for_permission() -> None:
    known = {name: list_asking_modes(profile) for name, profile in BUILT_IN.items()}
    assert known == {
        "claude": ["default", "plan"],
        "codex": ["ask"],
        "demo": ["ask"],
        "gemini": ["default", "plan"],
        "opencode": None,
    }


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "opencode", "node"])
def test_all_packages_are_locked(name: str) -> None:
    """By digest, for both processors, and independent of the registry."""
    packages = json.loads(read_lock(name))["packages"]
    root = packages.pop("")
    for package in packages.values():
        assert package["integrity"].startswith("sha512-")
        assert "resolved" not in package
        for needed in (*package.get("dependencies", {}), *package.get("optionalDependencies", {})):
            assert any(path.endswith(f"node_modules/{needed}") for path in packages), needed
    assert {processor for package in packages.values() for processor in package.get("cpu", ())} >= {"x64", "arm64"}
    for wanted, version in {**root.get("dependencies", {}), **root.get("optionalDependencies", {})}.items():
        assert packages[f"node_modules/{wanted}"]["version"] == version


@pytest.mark.parametrize("module", [claude, codex, gemini, opencode])
def test_installs_locked_version(module: ModuleType) -> None:
    (profile,) = (candidate for candidate in vars(module).values() if isinstance(candidate, BuiltInProfile))
    assert profile.install is not None
    script = profile.install.script
    assert f'"{module.PACKAGE}":"{module.VERSION}"' in script
    assert "npm ci --ignore-scripts" in script
    assert "npm install" not in script
    assert len(script) < 100_000, "it is passed as an environment variable, which is limited to 128 KiB"
    assert ("postinstall" in script) is (module is opencode)
