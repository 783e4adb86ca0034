"""`sandyard agent`: which agents there are, one's own besides, and whether one works."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.advice import NO_MODEL, advice_for
from sandyard.cli.agent_doctor import doctor
from sandyard.cli.completion import agent_names
from sandyard.cli.connection import connect, segment
from sandyard.cli.errors import FAILED, ApiError, CommandError, NoAnswerError
from sandyard.cli.git.progress import Ticker
from sandyard.cli.options import env_option, given
from sandyard.cli.output import as_json, echo, output_option, print_json, printable, show_list, show_one, text_option
from sandyard.cli.sse import follow

if TYPE_CHECKING:
    from sandyard.cli.client import Client

COLUMNS = {
    "NAME": "name",
    "TITLE": "title",
    "MODEL": "model",
    "SPEAKS": "apis",
    "OWNER": "ownerId",
}
FIELDS = {
    "name": "name",
    "title": "title",
    "description": "description",
    "demo": "demo",
    "version": "version",
    "speaks": "apis",
    "models": "models",
    "modes": "modes",
    "command": "definition.argv",
    "variables": "definition.envs",
    "install": "definition.install.script",
    "installed if": "definition.install.check",
    "authenticated by": "definition.authMethod",
    "owner": "ownerId",
    "updated": "updatedAt",
}
APIS = ["anthropic", "openai", "openai_chat", "gemini"]
STEPS = {"sandbox": "sandbox", "install": "install", "start": "start of the agent", "answer": "first answer"}
DOING = {
    "sandbox.provisioning": "waiting for a sandbox",
    "sandbox.running": "the sandbox runs",
    "agent.starting": "starting the agent",
    "agent.ready": "waiting for its answer",
}
NEEDS_KEY = "needs a key"
GIVE_UP_SECONDS = 120.0

name_argument = click.argument("name", shell_complete=agent_names)


@click.group()
def agent() -> None:
    """Agents that can work in sandboxes: those that come with Sandyard, and any other that speaks ACP."""


@agent.command("list")
@output_option
def list_agents(output: str | None) -> None:
    """Which agents there are."""
    with connect() as client:
        found = client.get("/agents")
    if as_json(output):
        print_json(found)
        return
    rows = [{**one, "model": _readiness(one)} for one in found["items"]]
    show_list({"items": rows}, COLUMNS, output, nothing="There is no agent.")
    if any(one["model"] == NEEDS_KEY for one in rows):
        echo(advice_for(NO_MODEL) or "", err=True)


def _readiness(agent: Any) -> str:
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
    """One agent, and how it is started."""
    with connect() as client:
        found = client.get(f"/agents/{segment(name)}")
    show_one(found, FIELDS, output)


@agent.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--title", help="[default: its name]")
@click.option("--description", help="What it is.")
@click.option(
    "--install", "script", help="A script for bash that installs it in a sandbox; @FILE reads it from a file."
)
@click.option("--check", help="A line for bash that succeeds where it is installed already.")
@env_option
@click.option("--api", "apis", type=click.Choice(APIS), multiple=True, help="What it speaks to a model. Repeatable.")
@click.option("--model", "models", multiple=True, help="One it works with. Repeatable.")
@click.option("--mode", "modes", multiple=True, help="One of its modes. Repeatable.")
@click.option("--auth-method", help="What it is to be authenticated with.")
@click.option("--replace", is_flag=True, help="Change the agent of this name if there is one.")
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
    """Add an agent of your own: COMMAND speaks the Agent Client Protocol on its standard input and output.

    Options come before NAME. Words and variables may have {model}, {base_url}, {capability}, {folder} and {home} in them.
    Variables are not secret; a model's key stays with the server, which {base_url} and {capability} lead to.
    """
    if (script is None) != (check is None):
        raise click.UsageError("--install and --check belong together.")
    if script is not None and script.startswith("@"):
        script = Path(script[1:]).read_text()
    options["argv"] = options["argv"][1:] if options["argv"][0] == "--" else options["argv"]
    install = None if script is None else {"script": script, "check": check}
    definition = given(install=install, authMethod=options.pop("auth_method"), **options)
    body = given(title=title, definition=definition)
    with connect() as client:
        made = _replaced(client, name, body) if replace else None
        if made is None:
            made = client.post("/agents", body | {"name": name})
    show_one(made, FIELDS, output)


def _replaced(client: Client, name: str, body: dict[str, Any]) -> Any:
    """None: there is no agent of that name."""
    try:
        return client.request("PUT", f"/agents/{segment(name)}", body=body)
    except ApiError as error:
        if error.http_status != 404:
            raise
        return None


@agent.command()
@name_argument
def remove(name: str) -> None:
    """Remove an agent that somebody has added."""
    with connect() as client:
        client.delete(f"/agents/{segment(name)}")
    echo(f"Removed {name}.", err=True)


@agent.command()
@name_argument
@click.option("--model", help="The model it is to use.  [default: the provider's first]")
@text_option
def test(name: str, model: str | None, output: str) -> None:
    """Try an agent: a sandbox, its install, its start, and one word from it. Exit code 0 if it works, else 1."""
    with connect() as client:
        begun = client.post(f"/agents/{segment(name)}/test", given(model=model) | {"background": True})
        with Ticker() as ticker:
            result = _attend(client, begun["sessionId"], ticker)
    if output == "json":
        print_json(result)
    else:
        for line in told(result):
            echo(line)
    sys.exit(0 if result["ok"] else FAILED)


def _attend(client: Client, session_id: str, ticker: Ticker) -> Any:
    """Until the server has told how it went; survives its restart."""
    ticker.progress("asking for a sandbox", None)
    try:
        for event in follow(client, "/events", {"sessionId": session_id}, after="0", give_up=GIVE_UP_SECONDS):
            if not event.data.startswith("{"):
                continue
            data = json.loads(event.data).get("data") or {}
            if event.kind == "agent.tested":
                return data
            if event.kind == "agent.installing":
                ticker.progress(data.get("what"), None)
            elif event.kind in DOING:
                ticker.progress(DOING[event.kind], None)
    except NoAnswerError as error:
        raise NoAnswerError(f"{error.message} The test goes on: sandyard events --session {session_id}") from None
    raise CommandError("The server does not say how the test went.")


def told(result: Any) -> list[str]:
    """`✓ sandbox  0.2 s`, then what it said, or why not."""
    lines = []
    for step in result["steps"]:
        mark = click.style("✓", fg="green") if step["ok"] else click.style("✗", fg="red")
        what = STEPS.get(step["name"], printable(str(step["name"])))
        lines.append(f"{mark} {what:<20} {step['seconds']:.1f} s")
    if result["ok"]:
        lines.append(f"It works. It said: {printable(result['answer'] or '')}")
    else:
        lines.append(f"It does not work. {printable(result['error'] or '')}")
        lines += filter(None, [advice_for(result.get("errorCode"))])
    return lines


agent.add_command(doctor)
