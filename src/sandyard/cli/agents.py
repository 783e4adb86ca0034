"""`sandyard agent`: list, add, remove and test agents."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.advice import NO_MODEL, get_advice
from sandyard.cli.agent_doctor import doctor
from sandyard.cli.completion import complete_agents
from sandyard.cli.connection import connect, quote_segment
from sandyard.cli.errors import FAILED, ApiError, CommandError, NoResponseError
from sandyard.cli.git.progress import ProgressLine
from sandyard.cli.options import drop_missing, env_option
from sandyard.cli.output import echo, escape, output_option, print_json, show_list, show_one, text_option, wants_json
from sandyard.cli.sse import follow

if TYPE_CHECKING:
    from sandyard.cli.client import Client

COLUMNS = {
    "NAME": "name",
    "TITLE": "title",
    "MODEL": "model",
    "API": "apis",
    "OWNER": "ownerId",
}
FIELDS = {
    "name": "name",
    "title": "title",
    "description": "description",
    "demo": "demo",
    "version": "version",
    "API": "apis",
    "models": "models",
    "modes": "modes",
    "command": "definition.argv",
    "variables": "definition.envs",
    "install": "definition.install.script",
    "installed if": "definition.install.check",
    "auth method": "definition.authMethod",
    "owner": "ownerId",
    "updated": "updatedAt",
}
APIS = ["anthropic", "openai", "openai_chat", "gemini"]
STEP_TITLES = {"sandbox": "sandbox", "install": "install", "start": "start", "answer": "first reply"}
PROGRESS_TEXTS = {
    "sandbox.provisioning": "waiting for a sandbox",
    "sandbox.running": "sandbox is running",
    "agent.starting": "starting the agent",
    "agent.ready": "waiting for the agent's reply",
}
NEEDS_KEY = "needs a key"
GIVE_UP_SECONDS = 120.0

name_argument = click.argument("name", shell_complete=complete_agents)


@click.group()
def agent() -> None:
    """Manage agents: the built-in ones and any other that supports the Agent Client Protocol (ACP)."""


@agent.command("list")
@output_option
def list_agents(output: str | None) -> None:
    """List agents."""
    with connect() as client:
        page = client.get("/agents")
    if wants_json(output):
        print_json(page)
        return
    rows = [{**agent, "model": _describe_model(agent)} for agent in page["items"]]
    show_list({"items": rows}, COLUMNS, output, empty_message="No agents.")
    if any(row["model"] == NEEDS_KEY for row in rows):
        echo(get_advice(NO_MODEL) or "", err=True)


def _describe_model(agent: Any) -> str:
    if not agent["apis"]:
        return "not needed"
    if agent["modelReady"]:
        return "ready"
    count = len(agent["modelProjects"])
    return f"ready in {count} project{'' if count == 1 else 's'}" if count else NEEDS_KEY


@agent.command()
@name_argument
@output_option
def show(name: str, output: str | None) -> None:
    """Show an agent and how it is started."""
    with connect() as client:
        found = client.get(f"/agents/{quote_segment(name)}")
    show_one(found, FIELDS, output)


@agent.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--title", help="Display title.  [default: NAME]")
@click.option("--description", help="Description.")
@click.option(
    "--install", "script", help="Bash script that installs it in a sandbox. @FILE reads the script from a file."
)
@click.option("--check", help="Bash command that succeeds if it is already installed.")
@env_option
@click.option("--api", "apis", type=click.Choice(APIS), multiple=True, help="Model API that it uses. Repeatable.")
@click.option("--model", "models", multiple=True, help="Model that it supports. Repeatable.")
@click.option("--mode", "modes", multiple=True, help="Mode that it supports. Repeatable.")
@click.option("--auth-method", help="ACP authentication method to use.")
@click.option("--replace", is_flag=True, help="Update the agent with this name if it exists.")
@click.argument("name")
@click.argument("argv", nargs=-1, required=True, metavar="COMMAND...")
@output_option
def add(
    *,
    name: str,
    title: str | None,
    script: str | None,
    check: str | None,
    replace: bool,
    output: str | None,
    **options: Any,
) -> None:
    """Add a custom agent. COMMAND must speak the Agent Client Protocol on its standard input and output.

    Put options before NAME. Arguments and variables may contain {model}, {base_url}, {capability}, {folder} and {home}.
    Variables are not secret. Model API keys stay on the server: the agent uses {base_url} and {capability} instead.
    """
    if (script is None) != (check is None):
        raise click.UsageError("Use --install and --check together.")
    if script is not None and script.startswith("@"):
        script = Path(script[1:]).read_text()
    options["argv"] = options["argv"][1:] if options["argv"][0] == "--" else options["argv"]
    install = None if script is None else {"script": script, "check": check}
    definition = drop_missing(install=install, authMethod=options.pop("auth_method"), **options)
    body = drop_missing(title=title, definition=definition)
    with connect() as client:
        saved = _update_agent(client, name, body) if replace else None
        if saved is None:
            saved = client.post("/agents", body | {"name": name})
    show_one(saved, FIELDS, output)


def _update_agent(client: Client, name: str, body: dict[str, Any]) -> Any:
    """Update an agent. Return None if there is no agent with that name."""
    try:
        return client.request("PUT", f"/agents/{quote_segment(name)}", body=body)
    except ApiError as error:
        if error.http_status != 404:
            raise
        return None


@agent.command()
@name_argument
def remove(name: str) -> None:
    """Remove a custom agent."""
    with connect() as client:
        client.delete(f"/agents/{quote_segment(name)}")
    echo(f"Removed {name}.", err=True)


@agent.command()
@name_argument
@click.option("--model", help="Model to use.  [default: the provider's first]")
@text_option
def test(name: str, model: str | None, output: str) -> None:
    """Test an agent. Create a sandbox, install and start the agent, and wait for its reply. The exit code is 0 if it works, otherwise 1."""
    with connect() as client:
        started = client.post(f"/agents/{quote_segment(name)}/test", drop_missing(model=model) | {"background": True})
        with ProgressLine() as progress:
            result = _wait_for_result(client, started["sessionId"], progress)
    if output == "json":
        print_json(result)
    else:
        for line in format_result(result):
            echo(line)
    sys.exit(0 if result["ok"] else FAILED)


def _wait_for_result(client: Client, session_id: str, line: ProgressLine) -> Any:
    """Wait for the result of a test. Survives a server restart."""
    line.show_progress("requesting a sandbox", None)
    try:
        for event in follow(client, "/events", {"sessionId": session_id}, after="0", give_up=GIVE_UP_SECONDS):
            if not event.data.startswith("{"):
                continue
            data = json.loads(event.data).get("data") or {}
            if event.kind == "agent.tested":
                return data
            if event.kind == "agent.installing":
                line.show_progress(data.get("what"), None)
            elif event.kind in PROGRESS_TEXTS:
                line.show_progress(PROGRESS_TEXTS[event.kind], None)
    except NoResponseError as error:
        raise NoResponseError(
            f"{error.message} The test is still running: sandyard events --session {session_id}"
        ) from None
    raise CommandError("The server did not report the result of the test.")


def format_result(result: Any) -> list[str]:
    """Return one line per step, such as `✓ sandbox  0.2 s`, then the agent's reply or the error."""
    lines = []
    for step in result["steps"]:
        mark = click.style("✓", fg="green") if step["ok"] else click.style("✗", fg="red")
        what = STEP_TITLES.get(step["name"], escape(str(step["name"])))
        lines.append(f"{mark} {what:<20} {step['seconds']:.1f} s")
    if result["ok"]:
        lines.append(f"It works. Reply: {escape(result['answer'] or '')}")
    else:
        lines.append(f"It does not work. {escape(result['error'] or '')}")
        lines += filter(None, [get_advice(result.get("errorCode"))])
    return lines


agent.add_command(doctor)
