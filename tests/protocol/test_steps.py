"""Steps of templates that want a program in the template: E2B has it in templates of its own, here a stand-in notes its call."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from e2b import AsyncTemplate, BuildException, Template

from .conftest import NewSandbox

PROGRAMS = ("/usr/local/bin/bun", "/usr/local/bin/devcontainer", "/usr/local/bin/mcp-gateway", "/prepare-exec.sh")
OWN = ("mcp-gateway", "devcontainer")
NOTING = r'printf "%s\n" "#!/bin/sh" "echo \$(basename \$0) \$* >> /opt/called" > {0} && chmod +x {0}'


@pytest.fixture
def templates_of_e2b(api: httpx.Client) -> Iterator[None]:
    """What the SDK asks for by name, built by a user: a template built under its name takes its place."""
    steps = ["touch /opt/called", "chmod 666 /opt/called", *(NOTING.format(program) for program in PROGRAMS)]
    for name in OWN:
        Template.build(Template().from_base_image().run_cmd(steps, user="root"), name)
    yield
    for name in OWN:
        assert api.delete(f"/templates/{name}").status_code == 204


def called(new_sandbox: NewSandbox, template: str) -> list[str]:
    return new_sandbox(template).files.read("/opt/called").splitlines()


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("templates_of_e2b")
def test_templates_that_e2b_has(new_sandbox: NewSandbox, unique: str) -> None:
    servers = Template().from_template("mcp-gateway").add_mcp_server(["exa", "brave"]).bun_install("zod", dev=True)
    Template.build(servers, f"mcp-{unique}")
    assert called(new_sandbox, f"mcp-{unique}") == ["mcp-gateway pull exa brave", "bun install --dev zod"]
    sandbox = new_sandbox(mcp={"exa": {"apiKey": "x"}})
    assert sandbox.get_mcp_token()
    assert "mcp-gateway --config" in sandbox.files.read("/opt/called")
    container = Template().from_template("devcontainer").beta_dev_container_prebuild("/work")
    Template.build(container.beta_set_dev_container_start("/work"), f"container-{unique}")
    assert "devcontainer up --workspace-folder /work" in called(new_sandbox, f"container-{unique}")


def test_other_templates_are_refused_by_the_sdk() -> None:
    with pytest.raises(BuildException, match="mcp-gateway"):
        Template().from_base_image().add_mcp_server("exa")
    with pytest.raises(BuildException, match="devcontainer"):
        Template().from_base_image().beta_dev_container_prebuild("/work")


@pytest.mark.timeout(240)
def test_apt_and_a_ready_command(new_sandbox: NewSandbox, unique: str) -> None:
    template = Template().from_base_image().apt_install("hello", no_install_recommends=True).set_ready_cmd("hello")
    Template.build(template, f"apt-{unique}")
    assert new_sandbox(f"apt-{unique}").commands.run("hello").stdout == "Hello, world!\n"


def test_a_description_in_other_words() -> None:
    described = Template().from_debian_image("bookworm").run_cmd("true")
    assert "FROM debian:bookworm" in Template.to_dockerfile(described)
    assert "debian:bookworm" in Template.to_json(described)
    again = AsyncTemplate().from_dockerfile("FROM debian:bookworm\nRUN true\n")
    assert "FROM debian:bookworm" in AsyncTemplate.to_dockerfile(again)
    assert "debian:bookworm" in AsyncTemplate.to_json(again)


async def test_bases_async(unique: str) -> None:
    await AsyncTemplate.build(AsyncTemplate().from_base_image().skip_cache().run_cmd("true"), f"first-{unique}")
    built = AsyncTemplate().skip_cache().from_template(f"first-{unique}")
    await AsyncTemplate.build(built, f"second-{unique}", tags=["one"])
    assert await AsyncTemplate.exists(f"second-{unique}")
    assert not await AsyncTemplate.exists(f"third-{unique}")
