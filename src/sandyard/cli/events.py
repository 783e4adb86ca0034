"""`sandyard events`: show past events and follow new ones."""

from __future__ import annotations

import json
from typing import Any

import click

from sandyard.cli.completion import complete_projects, complete_sandboxes, complete_sessions
from sandyard.cli.connection import connect, get_project_id
from sandyard.cli.options import limit_option
from sandyard.cli.output import echo, escape, is_terminal, output_option, print_json, wants_json
from sandyard.cli.sse import follow

TRIMMED_KIND = "events.trimmed"
SUBJECTS = ("sandboxId", "sessionId", "taskId", "projectId")


@click.command()
@click.option("--session", "session_id", shell_complete=complete_sessions, help="Only events of this session.")
@click.option("--sandbox", "sandbox_id", shell_complete=complete_sandboxes, help="Only events of this sandbox.")
@click.option("--task", "task_id", help="Only events of this task.")
@click.option("--project", shell_complete=complete_projects, help="Only events of this project.")
@click.option("--after", type=click.IntRange(0), help="Only events after this event number.")
@click.option("-f", "--follow", "following", is_flag=True, help="Follow new events until Ctrl-C.")
@limit_option(100)
@output_option
def events(
    *,
    session_id: str | None,
    sandbox_id: str | None,
    task_id: str | None,
    project: str | None,
    after: int | None,
    following: bool,
    limit: int,
    output: str | None,
) -> None:
    """Show the newest events in chronological order, or follow them live. With --after, show the first ones after that number.

    --follow shows only new events, or with --after all after that number. It survives dropped connections and server
    restarts without missing or repeating an event. With JSON output, it prints one event per line.
    """
    with connect() as client:
        project_id = get_project_id(client, project) if project else None
        params = {"sessionId": session_id, "sandboxId": sandbox_id, "taskId": task_id, "projectId": project_id}
        if following:
            _follow(client, params, after, wants_json(output))
            return
        page = _fetch_history(client, params, after, limit)
    if wants_json(output):
        print_json(page)
        return
    for event in page["items"]:
        echo(format_event(event))


def _follow(client: Any, params: dict[str, str | None], after: int | None, json_lines: bool) -> None:
    start = None if after is None else str(after)
    messages = follow(client, "/events", params, after=start, on_drop=lambda reason: echo(f"… {reason}", err=True))
    try:
        for message in messages:
            event = json.loads(message.data)
            if message.kind == TRIMMED_KIND:
                echo(f"… events up to number {event['upTo']} have been deleted.", err=True)
            elif "seq" in event:
                print_json(event, compact=True) if json_lines else echo(format_event(event))
    except KeyboardInterrupt:
        return


def _fetch_history(client: Any, params: dict[str, str | None], after: int | None, limit: int) -> Any:
    """Return the newest events, or the first ones after a number. Joins pages of up to 200."""
    items: list[Any] = []
    cursor = None
    while True:
        size = min(200, limit - len(items))
        if after is None:
            page = client.get("/events/history", newest=True, cursor=cursor, limit=size, **params)
            items = page["items"] + items
        else:
            page = client.get("/events/history", after=after, cursor=cursor, limit=size, **params)
            items += page["items"]
        cursor = page.get("nextCursor")
        if len(items) >= limit or not cursor or not page["items"]:
            return {**page, "items": items}


def format_event(event: dict[str, Any]) -> str:
    """Format an event: `1042  10:31:07  sandbox.paused  sbx_…  reason=idle`."""
    when = str(event.get("at") or "")[11:19]
    subject = next((str(event[name]) for name in SUBJECTS if event.get(name)), "")
    data = event.get("data") or {}
    details = " ".join(
        f"{name}={_shorten_value(value)}" for name, value in data.items() if value is not None and name not in SUBJECTS
    )
    kind = click.style(f"{event['kind']:<20}", fg="red" if event["kind"].endswith(".error") else "cyan")
    return f"{event.get('seq', ''):>6}  {when}  {kind}  {subject:<24}  {details}".rstrip()


def _shorten_value(value: Any) -> str:
    text = escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 60 or not is_terminal() else f"{text[:59]}…"
