"""Finds the tool that an agent offers for a step."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.models.steps import Act, Edit, Read, Shell, Use, UseMcp, Write

SHELLS = ("bash", "Bash", "exec_command", "shell_command", "shell", "run_shell_command", "local_shell")
WRITERS = ("write", "Write", "write_file")
EDITORS = ("edit", "Edit", "replace")
READERS = ("read", "Read", "read_file")
PATCHER = "apply_patch"


@dataclass(frozen=True)
class Tool:
    """A tool as offered. `freeform`: it takes text instead of JSON. `namespace`: the group it was offered in."""

    name: str
    schema: Mapping[str, Any]
    freeform: bool = False
    namespace: str | None = None

    @property
    def full_name(self) -> str:
        return f"{self.namespace}__{self.name}" if self.namespace else self.name

    @property
    def properties(self) -> Mapping[str, Any]:
        return dict(self.schema.get("properties") or {})

    @property
    def required(self) -> Sequence[str]:
        return list(self.schema.get("required") or [])


@dataclass(frozen=True)
class ToolCall:
    """`text` replaces `arguments` for a freeform tool."""

    name: str
    arguments: Mapping[str, Any]
    text: str | None = None
    namespace: str | None = None


class NoSuchToolError(Exception):
    """The agent has offered no tool that can do this."""


def make_tool_call(step: Act, offered: Sequence[Tool]) -> ToolCall:
    tools = {tool.full_name: tool for tool in offered}
    if isinstance(step, Use):
        return ToolCall(step.tool, step.arguments)
    if isinstance(step, UseMcp):
        name = next((name for name in tools if step.server in name and name.endswith(step.tool)), None)
        if name is None:
            raise NoSuchToolError(
                f"no {step.tool} of {step.server} is among the tools that were offered: {sorted(tools)}"
            )
        return ToolCall(tools[name].name, step.arguments, namespace=tools[name].namespace)
    if isinstance(step, Shell):
        return _shell(tools, step.command)
    if isinstance(step, Write):
        return _write(tools, step)
    if isinstance(step, Edit):
        return _edit(tools, step)
    if isinstance(step, Read):
        if tool := _first(tools, READERS):
            return ToolCall(tool.name, _fill(tool, path=step.path))
        return _shell(tools, f"cat -- {shlex.quote(step.path)}")
    raise NoSuchToolError(f"unknown step: {step!r}")


def _shell(tools: Mapping[str, Tool], command: str) -> ToolCall:
    tool = _first(tools, SHELLS)
    if tool is None:
        raise NoSuchToolError(f"no shell is among the tools that were offered: {sorted(tools)}")
    return ToolCall(tool.name, _fill(tool, command=command))


def _write(tools: Mapping[str, Tool], step: Write) -> ToolCall:
    if tool := _first(tools, WRITERS):
        return ToolCall(tool.name, _fill(tool, path=step.path, content=step.text))
    if tool := tools.get(PATCHER):
        lines = "".join(f"+{line}\n" for line in step.text.splitlines())
        return _patch(tool, f"*** Add File: {step.path}\n{lines}")
    return _shell(tools, f"printf %s {shlex.quote(step.text)} >{shlex.quote(step.path)}")


def _edit(tools: Mapping[str, Tool], step: Edit) -> ToolCall:
    if tool := _first(tools, EDITORS):
        return ToolCall(tool.name, _fill(tool, path=step.path, old=step.old, new=step.new))
    if tool := tools.get(PATCHER):
        old = "".join(f"-{line}\n" for line in step.old.splitlines())
        new = "".join(f"+{line}\n" for line in step.new.splitlines())
        return _patch(tool, f"*** Update File: {step.path}\n@@\n{old}{new}")
    raise NoSuchToolError(f"no editor is among the tools that were offered: {sorted(tools)}")


def _patch(tool: Tool, body: str) -> ToolCall:
    text = f"*** Begin Patch\n{body}*** End Patch\n"
    return ToolCall(tool.name, {}, text) if tool.freeform else ToolCall(tool.name, _fill(tool, patch=text))


def _first(tools: Mapping[str, Tool], names: Sequence[str]) -> Tool | None:
    return next((tools[name] for name in names if name in tools), None)


NAMES = {
    "command": ("command", "cmd"),
    "path": ("filePath", "file_path", "path", "absolute_path"),
    "content": ("content",),
    "old": ("oldString", "old_string"),
    "new": ("newString", "new_string"),
    "patch": ("input", "patchText", "patch"),
}


def _fill(tool: Tool, **arguments: str) -> dict[str, Any]:
    """Return the arguments under the names that this tool uses. Other required arguments get harmless values."""
    filled: dict[str, Any] = {}
    for meaning, value in arguments.items():
        name = next((name for name in NAMES[meaning] if name in tool.properties), None)
        if name is None:
            raise NoSuchToolError(f"{tool.name} takes no {meaning}: {sorted(tool.properties)}")
        array = tool.properties[name].get("type") == "array"
        filled[name] = ["bash", "-lc", value] if array else value
    for name in tool.required:
        if name not in filled:
            filled[name] = make_example(tool.properties.get(name, {}))
    return filled


def make_example(schema: Mapping[str, Any]) -> Any:
    """Return a minimal value for a JSON schema."""
    if schema.get("enum"):
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    match str(kind).lower():
        case "object":
            properties = schema.get("properties") or {}
            return {name: make_example(properties.get(name, {})) for name in schema.get("required") or properties}
        case "array":
            return []
        case "boolean":
            return False
        case "number" | "integer":
            return schema.get("minimum", 0)
        case _:
            return "as the script says"
