"""`sandyard session prompt, transcript, cancel, answer`: talk to the agent of a session."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.advice import get_advice
from sandyard.cli.completion import complete_sessions
from sandyard.cli.connection import connect, quote_segment
from sandyard.cli.errors import FAILED, CommandError
from sandyard.cli.live.asks import AskPrompt, allow_denied, answer_options, answer_or_list
from sandyard.cli.live.feed import INTERRUPTED, FeedUpdate, follow_until
from sandyard.cli.live.screen import Screen
from sandyard.cli.live.transcript import Transcript, open_transcript, print_transcript
from sandyard.cli.options import drop_missing
from sandyard.cli.output import echo, escape, output_option, print_json, text_option, wants_json

if TYPE_CHECKING:
    from sandyard.cli.client import Client

OPEN_STATUSES = {"queued", "running", "waiting"}
ENDINGS = {"cancelled": "was cancelled", "over_budget": "was stopped"}
session_argument = click.argument("session_id", metavar="SESSION", shell_complete=complete_sessions)


@click.command()
@session_argument
@click.argument("text")
@click.option("--model", help="Model from this turn on.  [default: unchanged]")
@click.option("--mode", help="Agent mode from this turn on.  [default: unchanged]")
@click.option("-f", "--follow", "following", is_flag=True, help="Follow the agent until it is done.")
@text_option
def prompt(*, session_id: str, text: str, model: str | None, mode: str | None, following: bool, output: str) -> None:
    """Send a prompt to the agent of a session. `-` reads TEXT from standard input.

    While the agent is busy, the prompt waits in the queue. With --follow, the exit code is 1 if the turn fails or is cancelled.
    """
    text = sys.stdin.read() if text == "-" else text
    if not text.strip():
        raise CommandError("The prompt is empty.")
    with connect() as client:
        turn = client.post(
            f"/sessions/{quote_segment(session_id)}/turns", drop_missing(text=text, model=model, mode=mode)
        )
        if not following:
            if output == "json":
                print_json(turn)
            else:
                echo(turn["id"])
                echo(f"To follow it: sandyard session transcript {session_id} --follow", err=True)
            return
        _follow_and_exit(client, session_id, turn, as_json=output == "json")


@click.command()
@session_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Follow the agent until all turns are done.")
@text_option
def transcript(session_id: str, following: bool, output: str) -> None:
    """Show a session's transcript. With JSON output, each message is a line."""
    with connect() as client:
        if following:
            _follow_and_exit(client, session_id, None, as_json=output == "json")
            return
        client.get(f"/sessions/{quote_segment(session_id)}")  # raises an error if the session does not exist
        with Screen() as screen:
            print_transcript(client, session_id, screen, as_json=output == "json")


@click.command()
@session_argument
@output_option
def cancel(session_id: str, output: str | None) -> None:
    """Cancel the agent's current turn and all queued turns."""
    with connect() as client:
        turns = [turn for turn in _list_turns(client, session_id) if turn["status"] in OPEN_STATUSES]
        done = [
            client.post(f"/turns/{quote_segment(turn['id'])}/cancel") for turn in turns
        ]  # newest first, so that no queued turn starts
    if wants_json(output):
        print_json({"items": done, "nextCursor": None})
    else:
        echo("Cancelled." if done else "No turn is running.")


@click.command()
@session_argument
@answer_options
@text_option
def answer(session_id: str, output: str, **given: Any) -> None:
    """Answer the agent's question or permission request. Without ANSWER, show it.

    ANSWER is an option's number or name, or allow or reject; for a question it is free text.
    For several questions at once, use NAME=ANSWER for each, or one answer for each in order.
    """
    with connect() as client:
        answer_or_list(client, {"sessionId": session_id}, session_id, as_json=output == "json", **given)


@click.command()
@session_argument
@text_option
def allow(session_id: str, output: str) -> None:
    """Allow what the project's policy denied, and continue. Applies to the rest of the session."""
    with connect() as client:
        allow_denied(client, {"sessionId": session_id}, session_id, as_json=output == "json")


def _list_turns(client: Client, session_id: str) -> list[Any]:
    return list(client.list_items(f"/sessions/{quote_segment(session_id)}/turns", 1000)["items"])


def _follow_and_exit(client: Client, session_id: str, turn: Any, *, as_json: bool) -> None:
    """Follow a turn, or all turns of the session, to the end. Exits this process with 1 if the last one was not successful."""
    with Screen() as screen:
        try:
            turns = _follow(client, session_id, turn, screen, as_json=as_json)
        except KeyboardInterrupt:
            screen.clear()
            echo("\nThe agent continues on the server.", err=True)
            echo(f"To follow it: sandyard session transcript {session_id} --follow", err=True)
            echo(f"To cancel it: sandyard session cancel {session_id}", err=True)
            sys.exit(INTERRUPTED)
        if not turns or turns[0]["status"] == "completed":
            return
        if not as_json:
            outcome = ENDINGS.get(turns[0]["status"], "failed")
            reason = f": {turns[0]['error']}" if turns[0].get("error") else "."
            screen.print_note(escape(f"The turn {outcome}{reason}"))
            if (advice := get_advice(turns[0].get("errorCode"))) is not None:
                screen.print_note(advice)
    sys.exit(FAILED)


def _follow(client: Client, session_id: str, turn: Any, screen: Screen, *, as_json: bool) -> Any:
    """Return the followed turns, newest first, in their final state."""
    start = str(turn.get("promptId") or "") if turn is not None else ""
    shown = open_transcript(client, session_id, screen, as_json=as_json, start=start)
    filters = {"sessionId": session_id}
    interactive = sys.stdin.isatty() and screen.is_terminal
    ask_prompt = AskPrompt(client, screen, filters, f"session answer {session_id}", interactive=interactive)
    turns: list[Any] = []

    def refresh(update: FeedUpdate) -> list[Any] | None:
        if update.reconnected or update.has_event("turn"):
            found = client.get(f"/turns/{quote_segment(turn['id'])}") if turn is not None else None
            turns[:] = [found] if found is not None else _list_turns(client, session_id)
        has_ended = not any(turn["status"] in OPEN_STATUSES for turn in turns)
        shown.handle_events(update, has_ended=has_ended)
        screen.set_status(_describe_activity(turns, shown))
        return turns if has_ended else None

    return follow_until(client, filters, screen, ask_prompt, refresh)


def _describe_activity(turns: list[Any], shown: Transcript) -> str:
    statuses = {turn["status"] for turn in turns}
    if "waiting" in statuses:
        return "the agent is waiting for an answer"
    if "running" in statuses:
        return f"the agent is working: {shown.activity}" if shown.activity else "the agent is working"
    return "waiting in the queue"
