"""`sandyard agent doctor`: run an ACP agent on this machine, check what the platform needs of it and report what is missing."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import click

from sandyard.cli.errors import FAILED
from sandyard.cli.findings import Finding
from sandyard.cli.output import echo, escape, print_json, text_option

VERSION = 1
PROMPT = "Answer with one short sentence. Change nothing."
LONG_PROMPT = "Count from 1 to 1000 in words, one number on each line. Change nothing."
CANCEL_SECONDS = 15.0
END_SECONDS = 15.0
MAX_LINE = 16 << 20
METHOD_NOT_FOUND = -32601
SHOWN = 200


class AgentError(Exception):
    """What the agent did wrong, as a sentence."""


@dataclass
class AgentProcess:
    """An agent process that speaks JSON-RPC on its standard input and output, one message per line."""

    command: Sequence[str]
    folder: str
    errors: IO[bytes]
    timeout_s: float
    texts: list[str] = field(default_factory=list)
    tool_calls: int = 0
    permissions: int = 0
    unknown_methods: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        try:
            self._process = subprocess.Popen(
                self.command, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors
            )
        except OSError as error:
            raise AgentError(f"Could not start {self.command[0]!r}: {error.strerror or error}.") from None
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._number = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(MAX_LINE):
            self._lines.put(line)
        self._lines.put(None)

    def send(self, method: str, params: dict[str, Any]) -> int:
        """Send a request and return its id."""
        self._number += 1
        self._write({"id": self._number, "method": method, "params": params})
        return self._number

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._write({"method": method, "params": params})

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return self.wait(self.send(method, params), method, self.timeout_s)

    def wait(self, number: int, method: str, timeout_s: float) -> dict[str, Any]:
        """Return the result of a request. Answers the agent's own requests while it waits. Raises AgentError."""
        deadline = time.monotonic() + timeout_s
        while True:
            message = self._receive(method, deadline)
            if message.get("id") == number and "method" not in message:
                if "error" in message:
                    raise AgentError(f"{method} failed: {_shown(message['error'])}")
                result = message.get("result")
                return result if isinstance(result, dict) else {}
            self._handle(message)

    def wait_for_update(self, timeout_s: float) -> bool:
        """Wait until the agent sends text or starts a tool call. Return False if it does neither."""
        deadline, before = time.monotonic() + timeout_s, (len(self.texts), self.tool_calls)
        while (len(self.texts), self.tool_calls) == before:
            try:
                message = self._receive("session/prompt", deadline)
            except AgentError:
                return False
            if "method" not in message:
                return False  # the turn is over
            self._handle(message)
        return True

    def _receive(self, method: str, deadline: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise AgentError(f"{method} timed out. To wait longer, use --timeout.") from None
        if line is None:
            code = self._process.wait()
            raise AgentError(f"The process ended with exit code {code} before answering {method}.")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise AgentError(
                f"The agent printed a line that is not a JSON-RPC message: {_shown(line.decode(errors='replace'))}. "
                "Use standard output only for the protocol and write logs to standard error."
            )
        return message

    def _handle(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params")
        params = params if isinstance(params, dict) else {}
        if method == "session/update":
            self._take_update(params.get("update"))
        elif "id" in message and method == "session/request_permission":
            self.permissions += 1
            self._write({"id": message["id"], "result": {"outcome": _allow(params.get("options"))}})
        elif "id" in message and method == "elicitation/create":
            self._write({"id": message["id"], "result": {"action": "decline"}})
        elif "id" in message and isinstance(method, str):
            self.unknown_methods.add(method)
            error = {"code": METHOD_NOT_FOUND, "message": f"Method not found: {method}"}
            self._write({"id": message["id"], "error": error})

    def _take_update(self, update: Any) -> None:
        if not isinstance(update, dict):
            return
        kind, content = update.get("sessionUpdate"), update.get("content")
        if kind == "agent_message_chunk" and isinstance(content, dict) and isinstance(content.get("text"), str):
            self.texts.append(content["text"])
        elif kind == "tool_call":
            self.tool_calls += 1

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the reader reports the reason
            self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            self._process.stdin.flush()

    def end(self) -> bool:
        """Close the agent's standard input. Return False if the process kept running and had to be killed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True


def examine(command: Sequence[str], folder: str, errors: IO[bytes], timeout_s: float) -> Iterator[Finding]:
    """Run the agent through a session. The detail of a finding that is not vital says what its failure means for users."""
    process, place = AgentProcess(command, folder, errors, timeout_s), {"cwd": folder, "mcpServers": []}
    try:
        greeting = _greet(process)
        yield Finding("initialize", ok=True, detail=f"supports ACP version {VERSION}", vital=True)
        methods = greeting.get("authMethods")
        names = [str(one.get("id")) for one in methods or [] if isinstance(one, dict)]
        if names:
            how = f"offers {', '.join(names)}. Interactive login is not possible in a sandbox: choose a method without it with --auth-method"
            yield Finding("authenticate", ok=True, detail=how)
        yield _check_mcp(greeting)
        opened = _open_session(process, place)
        yield Finding("session/new", ok=True, detail="works", vital=True)
        yield _check_prompt(process, opened["sessionId"])
        yield _check_cancel(process, opened["sessionId"])
        yield from _check_requests(process, opened)
        yield _check_resume(process, greeting, {"sessionId": opened["sessionId"], **place})
    except AgentError as error:
        yield Finding("agent", ok=False, detail=str(error), vital=True)
    finally:
        ended = process.end()
    yield Finding(
        "end",
        ok=ended,
        detail="exits when its input is closed"
        if ended
        else "keeps running when its input is closed, so the platform kills it",
    )


def _greet(process: AgentProcess) -> dict[str, Any]:
    greeting = process.call("initialize", _greeting())
    if (spoken := greeting.get("protocolVersion")) != VERSION:
        raise AgentError(
            f"The agent uses version {_shown(spoken)} of the Agent Client Protocol, but the platform uses version {VERSION}."
        )
    return greeting


def _check_mcp(greeting: dict[str, Any]) -> Finding:
    capabilities = greeting.get("agentCapabilities")
    over = capabilities.get("mcpCapabilities") if isinstance(capabilities, dict) else None
    if isinstance(over, dict) and over.get("http") is True:
        return Finding("mcp", ok=True, detail="supports MCP servers with a URL (mcpCapabilities.http)")
    why = "does not support MCP servers with a URL (mcpCapabilities.http): it only gets the project's MCP servers that are commands"
    return Finding("mcp", ok=False, detail=why)


def _open_session(process: AgentProcess, place: dict[str, Any]) -> dict[str, Any]:
    opened = process.call("session/new", place)
    if not isinstance(opened.get("sessionId"), str):
        raise AgentError("The response to session/new has no sessionId.")
    return opened


def _greeting() -> dict[str, Any]:
    return {
        "protocolVersion": VERSION,
        "clientCapabilities": {
            "fs": {"readTextFile": False, "writeTextFile": False},
            "terminal": False,
            "elicitation": {"form": {}},
        },
        "clientInfo": {"name": "sandyard-doctor", "title": "Sandyard", "version": "1"},
    }


def _prompt(session: str, text: str) -> dict[str, Any]:
    return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}


def _check_prompt(process: AgentProcess, session: str) -> Finding:
    reason = process.call("session/prompt", _prompt(session, PROMPT)).get("stopReason")
    said = "".join(process.texts).strip()
    if not isinstance(reason, str):
        raise AgentError("The response to session/prompt has no stopReason.")
    if not said:
        raise AgentError("The turn ended without any text in an agent_message_chunk, so users would see no reply.")
    return Finding("session/prompt", ok=True, detail=f"replied {_shown(said)} ({reason})", vital=True)


def _check_cancel(process: AgentProcess, session: str) -> Finding:
    number = process.send("session/prompt", _prompt(session, LONG_PROMPT))
    if not process.wait_for_update(process.timeout_s):
        return Finding("session/cancel", ok=True, detail="not tested: the turn ended first")
    process.notify("session/cancel", {"sessionId": session})
    try:
        reason = process.wait(number, "session/cancel", CANCEL_SECONDS).get("stopReason")
    except AgentError as error:
        why = f"{error} A cancelled turn must end within {CANCEL_SECONDS:g} s, or the platform kills the agent."
        return Finding("session/cancel", ok=False, detail=why)
    ended = reason in ("cancelled", "end_turn")
    return Finding("session/cancel", ok=ended, detail=f"the turn ended with {_shown(reason)}")


def _check_requests(process: AgentProcess, opened: dict[str, Any]) -> Iterator[Finding]:
    modes = opened.get("modes")
    offered = modes.get("availableModes") if isinstance(modes, dict) else None
    names = [str(one.get("id")) for one in offered or [] if isinstance(one, dict)]
    yield Finding("modes", ok=True, detail=f"offers {', '.join(names)}" if names else "offers none")
    if process.unknown_methods:
        names = sorted(process.unknown_methods)
        why = f"calls {', '.join(names)}, which the platform does not support: agents access files directly"
        yield Finding("requests", ok=False, detail=why)
    asked = "requested permission before acting" if process.permissions else "requested no permission in this test"
    yield Finding(
        "permissions",
        ok=True,
        detail=f"{asked}; a project's permission rules only apply to agents that request permission",
    )


def _check_resume(process: AgentProcess, greeting: dict[str, Any], session: dict[str, Any]) -> Finding:
    """Continue the session in another process, as after a pause."""
    capabilities = greeting.get("agentCapabilities")
    capabilities = capabilities if isinstance(capabilities, dict) else {}
    of_sessions = capabilities.get("sessionCapabilities")
    resumes = isinstance(of_sessions, dict) and of_sessions.get("resume") is not None
    if not resumes and capabilities.get("loadSession") is not True:
        why = "can neither load nor resume a session: after a pause it gets a summary of the conversation"
        return Finding("session/load", ok=False, detail=why)
    method = "session/resume" if resumes else "session/load"
    other = AgentProcess(process.command, process.folder, process.errors, process.timeout_s)
    try:
        other.call("initialize", _greeting())
        other.call(method, session)
    except AgentError as error:
        return Finding(method, ok=False, detail=str(error))
    finally:
        other.end()
    return Finding(method, ok=True, detail="continues a session in a new process")


def _allow(options: Any) -> dict[str, str]:
    known = [one for one in options if isinstance(one, dict)] if isinstance(options, list) else []
    for kind in ("allow_once", "allow_always"):
        for option in known:
            if option.get("kind") == kind:
                return {"outcome": "selected", "optionId": str(option.get("optionId"))}
    return {"outcome": "cancelled"}


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text[:SHOWN] + ("…" if len(text) > SHOWN else ""))


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    help="Timeout for each response, in seconds.",
)
@text_option
def doctor(command: tuple[str, ...], timeout_s: float, output: str) -> None:
    """Check whether an ACP agent supports what the platform needs.

    COMMAND starts the agent, as in `sandyard agent doctor my-agent --acp`. It runs as your user, in an empty directory, with your
    environment: set the model and API key it needs as environment variables. The exit code is 0 if the agent can work on tasks, otherwise 1.
    """
    findings = []
    with tempfile.TemporaryDirectory(prefix="sandyard-agent-") as folder, tempfile.TemporaryFile() as errors:
        try:
            for finding in examine(command, folder, errors, timeout_s):
                findings.append(finding)
                if output != "json":
                    echo(_line(finding))
        except AgentError as error:
            findings.append(Finding("start", ok=False, detail=str(error), vital=True))
            if output != "json":
                echo(_line(findings[-1]))
        errors.seek(0)
        said = errors.read()[-2000:].decode(errors="replace").strip()
    works = all(finding.ok for finding in findings if finding.vital)
    if output == "json":
        shown = [{"name": one.name, "ok": one.ok, "vital": one.vital, "detail": one.detail} for one in findings]
        print_json({"ok": works, "findings": shown, "stderr": said})
    elif works:
        echo("This agent can work on tasks. To add it: sandyard agent add --help")
    elif said:
        echo(f"End of the agent's standard error:\n{said}")
    sys.exit(0 if works else FAILED)


def _line(finding: Finding) -> str:
    mark = "✓" if finding.ok else "✗" if finding.vital else "!"
    return escape(f"{mark} {finding.name}: {finding.detail}")
