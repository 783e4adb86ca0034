"""`sandyard model`: model providers and their API keys. `sandyard usage`: what was spent on models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.completion import (
    complete_presets,
    complete_projects,
    complete_providers,
    complete_sessions,
    complete_tasks,
)
from sandyard.cli.connection import MAX_ITEMS, connect, get_project_id, quote_segment
from sandyard.cli.errors import FAILED, ApiError, CommandError
from sandyard.cli.options import drop_missing, limit_option
from sandyard.cli.output import (
    echo,
    escape,
    fit_table,
    output_option,
    print_json,
    show_list,
    show_one,
    wants_json,
)
from sandyard.cli.projects.connection_test import TEST_FAILED

if TYPE_CHECKING:
    from sandyard.cli.client import Client

KINDS = ["anthropic", "openai", "openai_chat", "gemini"]
COLUMNS = {
    "ID": "id",
    "NAME": "name",
    "API": "kind",
    "URL": "baseUrl",
    "KEY": "hint",
    "MODELS": "models",
    "PROJECT": "projectId",
}
NARROW_COLUMNS = {"ID": "id", "NAME": "name", "KEY": "hint", "MODELS": "models"}
"""The columns for terminals that are too narrow for all of them."""
FIELDS = {
    "id": "id",
    "name": "name",
    "API": "kind",
    "URL": "baseUrl",
    "key": "hint",
    "models": "models",
    "prices": "prices",
    "project": "projectId",
    "created": "createdAt",
}
USAGE_FIELDS = {
    "requests": "calls",
    "input tokens": "inputTokens",
    "output tokens": "outputTokens",
    "cache read tokens": "cacheReadTokens",
    "cache write tokens": "cacheWriteTokens",
    "US dollars": "costUsd",
    "requests without a price": "unpriced",
    "requests with an estimated cost": "estimated",
}
USAGE_COLUMNS = {
    "MODEL": "model",
    "REQUESTS": "calls",
    "INPUT TOKENS": "inputTokens",
    "OUTPUT TOKENS": "outputTokens",
    "US DOLLARS": "costUsd",
}
_ESTIMATE_NOTE = (
    "≈ contains estimates: some requests were stopped or are in progress, or the provider did not report their usage."
)
API_PATH = "/model-providers"
MAX_KEY_LENGTH = 4000

PRESET_COLUMNS = {
    "NAME": "name",
    "TITLE": "title",
    "URL": "baseUrl",
    "KEY": "key",
    "MODELS": "models",
    "AGENTS": "agents",
}

provider_argument = click.argument("provider", metavar="PROVIDER", shell_complete=complete_providers)
project_option = click.option(
    "--project", shell_complete=complete_projects, help="Project of the provider, by name or id."
)


@click.group()
def model() -> None:
    """Manage model providers: their URLs, API keys and prices. PROVIDER is a name or an id."""


@model.command("list")
@click.option("--project", shell_complete=complete_projects, help="Only providers that this project's agents may use.")
@limit_option()
@output_option
def list_providers(project: str | None, limit: int, output: str | None) -> None:
    """List providers, newest first. API keys are never shown."""
    with connect() as client:
        project_id = get_project_id(client, project) if project else None
        page = client.list_items(API_PATH, limit, projectId=project_id)
    columns, rows = COLUMNS, page["items"]
    if not wants_json(output):
        columns, rows = fit_table(rows, COLUMNS, NARROW_COLUMNS, "models")
    show_list(
        {**page, "items": rows},
        columns,
        output,
        empty_message="No model providers. To add one: sandyard model add PROVIDER",
    )


def _parse_prices(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    """Parse `MODEL=IN,OUT[,CACHE_READ[,CACHE_WRITE]]`."""
    prices = {}
    for text in values:
        name, _, numbers = text.partition("=")
        try:
            costs = [float(number) for number in numbers.split(",")]
        except ValueError:
            costs = []
        if not name or not 2 <= len(costs) <= 4:
            raise click.BadParameter(f"{text!r} is not MODEL=IN,OUT or MODEL=IN,OUT,CACHE_READ,CACHE_WRITE.")
        prices[name] = dict(zip(("input", "output", "cacheRead", "cacheWrite"), costs, strict=False))
    return prices


@model.command("presets")
@output_option
def list_presets(output: str | None) -> None:
    """List well-known providers with their URLs, models and prices. Use their names with `sandyard model add`."""
    with connect() as client:
        found = client.get("/model-presets")
    if wants_json(output):
        print_json(found)
        return
    rows = [{**preset, "key": "required" if preset["keyRequired"] else "not needed"} for preset in found["items"]]
    rows = [{**row, "models": row["models"] or "from the server"} for row in rows]
    show_list({"items": rows}, PRESET_COLUMNS, output, empty_message="No presets.")
    echo(f"Prices as of {found['pricesTaken']}. To see them, use `-o json`.", err=True)


@model.command()
@click.argument("name", shell_complete=complete_presets)
@click.option(
    "--preset", shell_complete=complete_presets, help="Preset to use.  [default: NAME, if there is such a preset]"
)
@click.option("--kind", type=click.Choice(KINDS), help="API type.  [default: the preset's]")
@click.option("--url", "--base-url", "base_url", help="Base URL.  [default: the preset's]")
@click.option("--project", shell_complete=complete_projects, help="Only for this project.  [default: for everyone]")
@click.option("--model", "models", multiple=True, help="Available model; the first one is the default. Repeatable.")
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="MODEL=IN,OUT[,CACHE_READ,CACHE_WRITE]",
    callback=_parse_prices,
    help="US dollars per million tokens. End MODEL with * to match a prefix. Repeatable.",
)
@click.option("--key-stdin", is_flag=True, help="Read the API key from standard input.")
@click.option("--no-key", is_flag=True, help="The provider needs no API key.")
@click.option(
    "--test/--no-test", default=True, show_default=True, help="Add the provider only if a test request succeeds."
)
@output_option
def add(
    *,
    name: str,
    preset: str | None,
    kind: str | None,
    base_url: str | None,
    project: str | None,
    models: tuple[str, ...],
    prices: dict[str, dict[str, float]],
    key_stdin: bool,
    no_key: bool,
    test: bool,
    output: str | None,
) -> None:
    """Add a model provider. It is for everyone (administrators only) or for a project.

    \b
    sandyard model add anthropic
    sandyard model add openrouter --project website
    sandyard model add ollama --url http://192.168.1.20:11434/v1
    sandyard model add local --kind openai_chat --url http://127.0.0.1:9000/v1 --model qwen3-coder --no-key

    `sandyard model presets` lists providers with known URLs, models and prices. The API key is read from a prompt, or from standard input
    with --key-stdin. It is never an argument, because other users on this machine could see it. The provider is tested first and not
    added if the test fails; use --no-test to add it anyway.
    """
    if no_key and key_stdin:
        raise click.UsageError("Use either --key-stdin or --no-key, not both.")
    with connect() as client:
        known_preset = _find_preset(client, name, preset, kind)
        if known_preset is None and kind is None:
            raise click.UsageError(f"There is no preset {name!r}. Set the API type with --kind: {', '.join(KINDS)}.")
        if known_preset is not None and not known_preset["keyRequired"] and not key_stdin:
            no_key = True
        key = None if no_key else _read_key(name, from_stdin=key_stdin)
        project_id = get_project_id(client, project) if project else None
        body = drop_missing(
            name=name,
            preset=known_preset and known_preset["name"],
            kind=kind,
            baseUrl=base_url,
            projectId=project_id,
            models=list(models) or None,
            prices=prices or None,
            key=key,
        )
        with explain_failed_test(f"{name} was not added. To add it anyway, use --no-test."):
            provider = client.post(API_PATH, {**body, "test": test})
    show_one(provider, FIELDS, output)
    if test:
        echo(f"{click.style('✓', fg='green')} {escape(name)} works.", err=True)


@model.command("set-key")
@provider_argument
@project_option
@click.option("--key-stdin", is_flag=True, help="Read the API key from standard input.")
@click.option("--test/--no-test", default=True, show_default=True, help="Save the key only if a test request succeeds.")
def set_key(provider: str, project: str | None, *, key_stdin: bool, test: bool) -> None:
    """Change a provider's API key. Prompts for the key, or reads it from standard input."""
    with connect() as client:
        path = f"{API_PATH}/{quote_segment(find_provider_id(client, provider, project))}"
        key = _read_key(provider, from_stdin=key_stdin)
        if key is None:
            raise CommandError("No API key was given. Nothing was changed.")
        with explain_failed_test("The API key was not saved. To save it anyway, use --no-test."):
            client.request("PATCH", path, body={"key": key, "test": test})
    echo("API key saved. It works." if test else "API key saved.", err=True)


@model.command()
@provider_argument
@project_option
def remove(provider: str, project: str | None) -> None:
    """Remove a provider and its API key. Its usage records are kept."""
    with connect() as client:
        client.delete(f"{API_PATH}/{quote_segment(find_provider_id(client, provider, project))}")
    echo(f"Removed {provider}.", err=True)


@model.command()
@provider_argument
@project_option
@output_option
def test(provider: str, project: str | None, output: str | None) -> None:
    """Send a small test request to a provider. The exit code is 1 if it fails."""
    with connect() as client:
        result = _test_provider(client, find_provider_id(client, provider, project))
    print_json(result) if wants_json(output) else _print_result(result, err=False)
    sys.exit(0 if result["ok"] else FAILED)


def _parse_time(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Parse a time. Without a zone it is UTC."""
    if value is None:
        return None
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a time. Use a format such as 2026-01-31 or 2026-01-31T08:00:00Z."
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).isoformat()


@click.command()
@click.option("--project", shell_complete=complete_projects, help="Only usage of this project.")
@click.option("--task", shell_complete=complete_tasks, help="Only usage of this task.")
@click.option("--session", shell_complete=complete_sessions, help="Only usage of this session.")
@click.option(
    "--since",
    metavar="TIME",
    callback=_parse_time,
    help="Only usage since this time, for example 2026-01-31 or 2026-01-31T08:00:00Z.",
)
@output_option
def usage(project: str | None, task: str | None, session: str | None, since: str | None, output: str | None) -> None:
    """Show what was spent on models, in total and by model."""
    with connect() as client:
        project_id = get_project_id(client, project) if project else None
        found = client.get("/usage", projectId=project_id, taskId=task, sessionId=session, since=since)
    if wants_json(output):
        show_one(found, USAGE_FIELDS, output)
        return
    show_one(_mark_estimate(found), USAGE_FIELDS, output)
    if found["models"]:
        echo()
        show_list(
            {"items": [_mark_estimate(model_usage) for model_usage in found["models"]]},
            USAGE_COLUMNS,
            "table",
            empty_message="",
        )
    if found.get("estimated"):
        echo(f"\n{_ESTIMATE_NOTE}")


def _mark_estimate(spent: Any) -> Any:
    """Mark the cost with ≈ if it contains an estimate."""
    is_estimate = spent.get("estimated") and spent.get("costUsd") is not None
    return {**spent, "costUsd": f"≈ {spent['costUsd']}"} if is_estimate else spent


def find_provider_id(client: Client, name: str, project: str | None) -> str:
    """Return the id of a provider, given its id or its name. Raises an error if no visible provider or more than one has that name."""
    if name.startswith("prv_"):
        return name
    project_id = get_project_id(client, project) if project else None
    found = [
        provider
        for provider in client.list_items(API_PATH, MAX_ITEMS, projectId=project_id)["items"]
        if provider["name"] == name
    ]
    if project_id is not None:
        found = [provider for provider in found if provider["projectId"] == project_id] or found
    if not found:
        raise ApiError(f"There is no provider {name!r}. To list providers, run `sandyard model list`.", 404)
    if len(found) > 1:
        ids = ", ".join(str(provider["id"]) for provider in found)
        raise CommandError(f"There are several providers named {name!r}. Use an id instead: {ids}.")
    return str(found[0]["id"])


def _find_preset(client: Client, name: str, preset: str | None, kind: str | None) -> Any:
    """Return the preset to use, or None if no preset has this name or --kind was given instead."""
    if preset is None and kind is not None:
        return None
    found = client.get("/model-presets")["items"]
    known = next((preset_info for preset_info in found if preset_info["name"] == (preset or name)), None)
    if known is None and preset is not None:
        raise click.UsageError(
            f"There is no preset {preset!r}. Available presets: {', '.join(preset_info['name'] for preset_info in found)}."
        )
    return known


def _read_key(name: str, *, from_stdin: bool) -> str | None:
    if from_stdin:
        value = sys.stdin.readline(MAX_KEY_LENGTH + 2).strip()
        if not value:
            raise CommandError("No API key on standard input: it is empty.")
        return value
    if not sys.stdin.isatty():
        raise CommandError("Pass the API key on standard input with --key-stdin, or use --no-key.")
    typed = click.prompt(
        f"API key for {escape(name)} (leave empty for none)", "", hide_input=True, show_default=False, err=True
    )
    return str(typed).strip() or None


@contextmanager
def explain_failed_test(advice: str) -> Iterator[None]:
    """Show the findings of a failed connection test, and this advice."""
    try:
        yield
    except ApiError as error:
        if error.problem_code != TEST_FAILED:
            raise
        found: Any = error.details.get("findings") or []
        for finding in found:
            echo(f"{click.style('✗', fg='red')} {escape(str(finding['detail']))}", err=True)
        raise CommandError(advice) from None


def _test_provider(client: Client, provider_id: str) -> Any:
    return client.post(f"{API_PATH}/{quote_segment(provider_id)}/test")


def _print_result(result: Any, *, err: bool) -> None:
    mark = click.style("✓", fg="green") if result["ok"] else click.style("✗", fg="red")
    echo(f"{mark} {escape(result['detail'])} ({result['durationMs']} ms)", err=err)
