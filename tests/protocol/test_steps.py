"""Test template steps that need a program in the template. E2B provides it in its own templates; here a script records the calls."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from e2b import AsyncTemplate, BuildException, Template

from .conftest import NewSandbox

PROGRAMS = ("/usr/local/bin/bun", "/usr/local/bin/devcontainer", "/usr/local/bin/mcp-gateway", "/prepare-exec.sh")
E2B_TEMPLATES = ("mcp-gateway", "devcontainer")
RECORDING_SCRIPT = r'printf "%s\n" "#!/bin/sh" "echo \$(basename \$0) \$* >> /opt/called" > {0} && chmod +x {0}'


@pytest.fixture
def templates_of_e2b(api: httpx.Client) -> Iterator[None]:
    """Templates with the names that the SDK requires, as a user would build them."""
    steps = ["touch /opt/called", "chmod 666 /opt/called", *(RECORDING_SCRIPT.format(program) for program in PROGRAMS)]
    for name in E2B_TEMPLATES:
        Template.build(Template().from_base_image().run_cmd(steps, user="root"), name)
    yield
    for name in E2B_TEMPLATES:
        assert api.delete(f"/templates/{name}").status_code == 204


def read_calls(new_sandbox: NewSandbox, template: str) -> list[str]:
    return new_sandbox(template).files.read("/opt/called").splitlines()


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("templates_of_e2b")
def test_steps_that_need_templates_of_e2b(new_sandbox: NewSandbox, unique: str) -> None:
    servers = Template().from_template("mcp-gateway").add_mcp_server(["exa", "brave"]).bun_install("zod", dev=True)
    Template.build(servers, f"mcp-{unique}")
    assert read_calls(new_sandbox, f"mcp-{unique}") == ["mcp-gateway pull exa brave", "bun install --dev zod"]
    sandbox = new_sandbox(mcp={"exa": {"apiKey": "x"}})
    assert sandbox.get_mcp_token()
    assert "mcp-gateway --config" in sandbox.files.read("/opt/called")
    container = Template().from_template("devcontainer").beta_dev_container_prebuild("/work")
    Template.build(container.beta_set_dev_container_start("/work"), f"container-{unique}")
    assert "devcontainer up --workspace-folder /work" in read_calls(new_sandbox, f"container-{unique}")


def test_the_sdk_refuses_these_steps_on_other_templates() -> None:
    with pytest.raises(BuildException, match="mcp-gateway"):
        Template().from_base_image().add_mcp_server("exa")
    with pytest.raises(BuildException, match="devcontainer"):
        Template().from_base_image().beta_dev_container_prebuild("/work")


@pytest.mark.timeout(240)
def test_apt_install_and_a_ready_command(new_sandbox: NewSandbox, unique: str) -> None:
    template = Template().from_base_image().apt_install("hello", no_install_recommends=True).set_ready_cmd("hello")
    Template.build(template, f"apt-{unique}")
    assert new_sandbox(f"apt-{unique}").commands.run("hello").stdout == "Hello, world!\n"


def test_conversion_to_dockerfile_and_json() -> None:
    template = Template().from_debian_image("bookworm").run_cmd("true")
    assert "FROM debian:bookworm" in Template.to_dockerfile(template)
    assert "debian:bookworm" in Template.to_json(template)
    parsed = AsyncTemplate().from_dockerfile("FROM debian:bookworm\nRUN true\n")
    assert "FROM debian:bookworm" in AsyncTemplate.to_dockerfile(parsed)
    assert "debian:bookworm" in AsyncTemplate.to_json(parsed)


async def test_build_from_image_and_template_async(unique: str) -> None:
    await AsyncTemplate.build(AsyncTemplate().from_base_image().skip_cache().run_cmd("true"), f"first-{unique}")
    derived = AsyncTemplate().skip_cache().from_template(f"first-{unique}")
    await AsyncTemplate.build(derived, f"second-{unique}", tags=["one"])
    assert await AsyncTemplate.exists(f"second-{unique}")
    assert not await AsyncTemplate.exists(f"third-{unique}")
