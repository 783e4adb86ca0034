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

from sandyard.cli.connection import connect
from sandyard.cli.errors import FAILED, CommandError
from sandyard.cli.findings import Finding
from sandyard.cli.output import echo, escape, print_json, text_option

ACP_VERSION = 1
PROMPT = "Answer with one short sentence. Change nothing."
LONG_PROMPT = "Count from 1 to 1000 in words, one number on each line. Change nothing."
CANCEL_SECONDS = 15.0
END_SECONDS = 15.0
SERVER_SECONDS = 5.0
MAX_LINE_BYTES = 16 << 20
METHOD_NOT_FOUND = -32601
MAX_SHOWN_CHARACTERS = 200


class AgentError(Exception):
    """A violation of the protocol by the agent. The message is a sentence."""


@dataclass
class AgentProcess:
    """An agent process that speaks JSON-RPC on its standard input and output, one message per line.

    `texts`, `tool_calls`, `permission_requests` and `unknown_methods` record what it has sent.
    """

    command: Sequence[str]
    folder: str
    stderr: IO[bytes]
    timeout_s: float
    texts: list[str] = field(default_factory=list)
    tool_calls: int = 0
    permission_requests: int = 0
    unknown_methods: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        try:
            self._process = subprocess.Popen(
                self.command, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr
            )
        except OSError as error:
            raise AgentError(f"Could not start {self.command[0]!r}: {error.strerror or error}.") from None
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._last_id = 0
        threading.Thread(target=self._read_lines, daemon=True).start()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(MAX_LINE_BYTES):
            self._lines.put(line)
        self._lines.put(None)

    def send(self, method: str, params: dict[str, Any]) -> int:
        """Send a request and return its id."""
        self._last_id += 1
        self._write({"id": self._last_id, "method": method, "params": params})
        return self._last_id

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._write({"method": method, "params": params})

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return self.wait(self.send(method, params), method, self.timeout_s)

    def wait(self, request_id: int, method: str, timeout_s: float) -> dict[str, Any]:
        """Return the result of a request. Answers the agent's own requests while it waits. Raises AgentError."""
        deadline = time.monotonic() + timeout_s
        while True:
            message = self._receive(method, deadline)
            if message.get("id") == request_id and "method" not in message:
                if "error" in message:
                    raise AgentError(f"{method} failed: {_quote(message['error'])}")
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
                f"The agent printed a line that is not a JSON-RPC message: {_quote(line.decode(errors='replace'))}. "
                "Use standard output only for the protocol and write logs to standard error."
            )
        return message

    def _handle(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params")
        params = params if isinstance(params, dict) else {}
        if method == "session/update":
            self._count_update(params.get("update"))
        elif "id" in message and method == "session/request_permission":
            self.permission_requests += 1
            self._write({"id": message["id"], "result": {"outcome": _choose_allow_option(params.get("options"))}})
        elif "id" in message and method == "elicitation/create":
            self._write({"id": message["id"], "result": {"action": "decline"}})
        elif "id" in message and isinstance(method, str):
            self.unknown_methods.add(method)
            error = {"code": METHOD_NOT_FOUND, "message": f"Method not found: {method}"}
            self._write({"id": message["id"], "error": error})

    def _count_update(self, update: Any) -> None:
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

    def stop(self) -> bool:
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


def check_agent(command: Sequence[str], folder: str, stderr: IO[bytes], timeout_s: float) -> Iterator[Finding]:
    """Run the agent through a session. The detail of a finding that is not vital says what its failure means for users."""
    process, session_params = AgentProcess(command, folder, stderr, timeout_s), {"cwd": folder, "mcpServers": []}
    try:
        agent_info = _initialize(process)
        yield Finding("initialize", ok=True, detail=f"supports ACP version {ACP_VERSION}", vital=True)
        methods = agent_info.get("authMethods")
        names = [str(method.get("id")) for method in methods or [] if isinstance(method, dict)]
        if names:
            detail = f"offers {', '.join(names)}. Interactive login is not possible in a sandbox: "
            detail += "choose a method without it with --auth-method"
            yield Finding("authenticate", ok=True, detail=detail)
        yield _check_mcp(agent_info)
        new_session = _open_session(process, session_params)
        yield Finding("session/new", ok=True, detail="works", vital=True)
        yield _check_prompt(process, new_session["sessionId"])
        yield _check_cancel(process, new_session["sessionId"])
        yield from _check_modes_and_permissions(process, new_session)
        yield _check_resume(process, agent_info, {"sessionId": new_session["sessionId"], **session_params})
    except AgentError as error:
        yield Finding("agent", ok=False, detail=str(error), vital=True)
    finally:
        ended = process.stop()
    yield Finding(
        "end",
        ok=ended,
        detail="exits when its input is closed"
        if ended
        else "keeps running when its input is closed, so the platform kills it",
    )


def _initialize(process: AgentProcess) -> dict[str, Any]:
    agent_info = process.call("initialize", _make_initialize_params())
    if (version := agent_info.get("protocolVersion")) != ACP_VERSION:
        raise AgentError(
            f"The agent uses version {_quote(version)} of the Agent Client Protocol, but the platform uses version {ACP_VERSION}."
        )
    return agent_info


def _check_mcp(agent_info: dict[str, Any]) -> Finding:
    capabilities = agent_info.get("agentCapabilities")
    transports = capabilities.get("mcpCapabilities") if isinstance(capabilities, dict) else None
    if isinstance(transports, dict) and transports.get("http") is True:
        return Finding("mcp", ok=True, detail="supports MCP servers with a URL (mcpCapabilities.http)")
    detail = "does not support MCP servers with a URL (mcpCapabilities.http): it only gets the project's MCP servers that are commands"
    return Finding("mcp", ok=False, detail=detail)


def _open_session(process: AgentProcess, session_params: dict[str, Any]) -> dict[str, Any]:
    new_session = process.call("session/new", session_params)
    if not isinstance(new_session.get("sessionId"), str):
        raise AgentError("The response to session/new has no sessionId.")
    return new_session


def _make_initialize_params() -> dict[str, Any]:
    return {
        "protocolVersion": ACP_VERSION,
        "clientCapabilities": {
            "fs": {"readTextFile": False, "writeTextFile": False},
            "terminal": False,
            "elicitation": {"form": {}},
        },
        "clientInfo": {"name": "sandyard-doctor", "title": "Sandyard", "version": "1"},
    }


def _make_prompt_params(session: str, text: str) -> dict[str, Any]:
    return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}


def _check_prompt(process: AgentProcess, session: str) -> Finding:
    reason = process.call("session/prompt", _make_prompt_params(session, PROMPT)).get("stopReason")
    reply = "".join(process.texts).strip()
    if not isinstance(reason, str):
        raise AgentError("The response to session/prompt has no stopReason.")
    if not reply:
        raise AgentError("The turn ended without any text in an agent_message_chunk, so users would see no reply.")
    return Finding("session/prompt", ok=True, detail=f"replied {_quote(reply)} ({reason})", vital=True)


def _check_cancel(process: AgentProcess, session: str) -> Finding:
    request_id = process.send("session/prompt", _make_prompt_params(session, LONG_PROMPT))
    if not process.wait_for_update(process.timeout_s):
        return Finding("session/cancel", ok=True, detail="not tested: the turn ended first")
    process.notify("session/cancel", {"sessionId": session})
    try:
        reason = process.wait(request_id, "session/cancel", CANCEL_SECONDS).get("stopReason")
    except AgentError as error:
        detail = f"{error} A cancelled turn must end within {CANCEL_SECONDS:g} s, or the platform kills the agent."
        return Finding("session/cancel", ok=False, detail=detail)
    ended = reason in ("cancelled", "end_turn")
    return Finding("session/cancel", ok=ended, detail=f"the turn ended with {_quote(reason)}")


def _check_modes_and_permissions(process: AgentProcess, new_session: dict[str, Any]) -> Iterator[Finding]:
    modes = new_session.get("modes")
    offered = modes.get("availableModes") if isinstance(modes, dict) else None
    names = [str(method.get("id")) for method in offered or [] if isinstance(method, dict)]
    yield Finding("modes", ok=True, detail=f"offers {', '.join(names)}" if names else "offers none")
    if process.unknown_methods:
        names = sorted(process.unknown_methods)
        detail = f"calls {', '.join(names)}, which the platform does not support: agents access files directly"
        yield Finding("requests", ok=False, detail=detail)
    asked = (
        "requested permission before acting" if process.permission_requests else "requested no permission in this test"
    )
    yield Finding(
        "permissions",
        ok=True,
        detail=f"{asked}; a project's permission rules only apply to agents that request permission",
    )


def _check_resume(process: AgentProcess, agent_info: dict[str, Any], session: dict[str, Any]) -> Finding:
    """Continue the session in another process, as after a pause."""
    capabilities = agent_info.get("agentCapabilities")
    capabilities = capabilities if isinstance(capabilities, dict) else {}
    session_capabilities = capabilities.get("sessionCapabilities")
    resumes = isinstance(session_capabilities, dict) and session_capabilities.get("resume") is not None
    if not resumes and capabilities.get("loadSession") is not True:
        detail = "can neither load nor resume a session: after a pause it gets a summary of the conversation"
        return Finding("session/load", ok=False, detail=detail)
    method = "session/resume" if resumes else "session/load"
    second = AgentProcess(process.command, process.folder, process.stderr, process.timeout_s)
    try:
        second.call("initialize", _make_initialize_params())
        second.call(method, session)
    except AgentError as error:
        return Finding(method, ok=False, detail=str(error))
    finally:
        second.stop()
    return Finding(method, ok=True, detail="continues a session in a new process")


def _choose_allow_option(options: Any) -> dict[str, str]:
    known = [option for option in options if isinstance(option, dict)] if isinstance(options, list) else []
    for kind in ("allow_once", "allow_always"):
        for option in known:
            if option.get("kind") == kind:
                return {"outcome": "selected", "optionId": str(option.get("optionId"))}
    return {"outcome": "cancelled"}


def _quote(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text[:MAX_SHOWN_CHARACTERS] + ("…" if len(text) > MAX_SHOWN_CHARACTERS else ""))


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, metavar="COMMAND...", type=click.UNPROCESSED)
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

    To test an agent that was already added to the platform, use `sandyard agent test`.
    """
    if not command:
        raise click.UsageError(
            "Missing argument 'COMMAND...'. To test an agent of `sandyard agent list`, run `sandyard agent test NAME`."
        )
    findings = []
    with tempfile.TemporaryDirectory(prefix="sandyard-agent-") as folder, tempfile.TemporaryFile() as stderr:
        try:
            for finding in check_agent(command, folder, stderr, timeout_s):
                findings.append(finding)
                if output != "json":
                    echo(_format_finding(finding))
        except AgentError as error:
            detail = f"{error}{_suggest_test(command)}"
            findings.append(Finding("start", ok=False, detail=detail, vital=True))
            if output != "json":
                echo(_format_finding(findings[-1]))
        stderr.seek(0)
        stderr_tail = stderr.read()[-2000:].decode(errors="replace").strip()
    works = all(finding.ok for finding in findings if finding.vital)
    if output == "json":
        rows = [
            {"name": finding.name, "ok": finding.ok, "vital": finding.vital, "detail": finding.detail}
            for finding in findings
        ]
        print_json({"ok": works, "findings": rows, "stderr": stderr_tail})
    elif works:
        echo("This agent can work on tasks. To add it: sandyard agent add --help")
    elif stderr_tail:
        echo(f"End of the agent's standard error:\n{stderr_tail}")
    sys.exit(0 if works else FAILED)


def _suggest_test(command: Sequence[str]) -> str:
    """Return how to test an agent of the platform, if its name was given instead of a command."""
    if len(command) > 1:
        return ""
    with contextlib.suppress(CommandError), connect(timeout=SERVER_SECONDS) as client:
        if command[0] in {agent["name"] for agent in client.get("/agents")["items"]}:
            return f" To test the agent {command[0]} of the platform: sandyard agent test {command[0]}"
    return ""


def _format_finding(finding: Finding) -> str:
    mark = "✓" if finding.ok else "✗" if finding.vital else "!"
    return escape(f"{mark} {finding.name}: {finding.detail}")
