"""Parse the instructions in a prompt, one per line."""

# This code runs on old versions of Python.
# ruff: noqa: UP037

import re
from typing import NamedTuple

HELP = """\
create PATH: CONTENT (or a fenced block below it)
append PATH: TEXT
replace PATH: OLD -> NEW
delete PATH
run: COMMAND
commit: MESSAGE
ask: QUESTION (later lines may say {answer})
permit: ACTION
say: TEXT
think: TEXT
plan: FIRST; SECOND; THIRD
sleep: SECONDS
fix: INSTRUCTION (followed when the verify command fails)
fail: REASON
refuse
crash
hang"""

_LIST_MARKERS = re.compile(r"^\s*(?:(?:[-*+•>]|\d{1,4}[.)]|\[[ xX]\])\s+)*")
_PATH = r"""(?:`([^`]+)`|"([^"]+)"|'([^']+)'|([^\s:`"']+))"""
_FILE = re.compile(r"(create|append)\s+(?:to\s+)?(?:(?:the\s+)?file\s+)?" + _PATH + r"\s*(:?)\s?(.*)$", re.IGNORECASE)
_REPLACE = re.compile(r"replace\s+(?:in\s+)?" + _PATH + r"\s*:\s?(.*?)\s(?:->|=>|→)(?:\s(.*))?$", re.IGNORECASE)
_DELETE = re.compile(r"delete\s+" + _PATH + r"\s*$", re.IGNORECASE)
_FIX = re.compile(r"fix\s*:\s*(.*)$", re.IGNORECASE)
_VERB_WITH_TEXT = re.compile(r"(run|commit|ask|permit|say|think|plan|fail|sleep)\s*:\s*(.*)$", re.IGNORECASE)
_VERB_ALONE = re.compile(r"(refuse|crash|hang)\s*[.!]?$", re.IGNORECASE)
_FENCE = re.compile(r"^\s*(```+|~~~+)")
_ESCAPE = re.compile(r"\\([nt\\])")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


class Step(NamedTuple):
    """One instruction. `path` is the file of a file instruction, `old` the text that `replace` searches for."""

    verb: str
    text: str = ""
    path: str = ""
    old: str = ""


class Instructions(NamedTuple):
    """`steps` are in order, and empty if the prompt is only prose. `fixes` are the lines to follow after a failure."""

    steps: "list[Step]"
    fixes: "list[str]"


def parse_prompt(prompt: str) -> Instructions:
    """Parse a prompt. A fenced block is the content of the file in the line above it; any other fenced block is
    ignored."""
    steps: "list[Step]" = []
    fixes: "list[str]" = []
    lines = prompt.splitlines()
    at = 0
    while at < len(lines):
        if _FENCE.match(lines[at]):
            at = _read_block(lines, at)[1]
            continue
        line = _strip_markup(lines[at])
        at += 1
        if line[1:2].isupper():  # output of a test runner, such as `FAIL: test_login`
            continue
        fix = _FIX.match(line)
        instruction = fix.group(1) if fix else line
        file = _FILE.match(instruction)
        if fix and (file or _parse_line(instruction)):
            after = _read_block(lines, at)[1] if file and not file.group(7) else at
            fixes += [instruction, *lines[at:after]]
            at = after
        elif file:
            verb, path = file.group(1).lower(), _get_first_group(file.groups()[1:5])
            colon, content = file.group(6), file.group(7)
            if not content:
                block, after = _read_block(lines, at)
                if block is not None:
                    steps.append(Step(verb, block, path))
                    at = after
                elif colon:
                    steps.append(Step(verb, "", path))
            elif colon:
                steps.append(Step(verb, _unescape(content), path))
        else:
            step = _parse_line(line)
            if step is not None:
                steps.append(step)
    return Instructions(steps, fixes)


def _parse_line(line: str) -> "Step | None":
    found = _REPLACE.match(line)
    if found:
        old, new = _unescape(found.group(5)), _unescape(found.group(6) or "")
        return Step("replace", new, _get_first_group(found.groups()[:4]), old)
    found = _DELETE.match(line)
    if found:
        return Step("delete", "", _get_first_group(found.groups()))
    found = _VERB_WITH_TEXT.match(line)
    if found:
        verb, text = found.group(1).lower(), found.group(2).strip()
        return Step(verb, text if verb == "run" else _unescape(text))
    found = _VERB_ALONE.match(line)
    return Step(found.group(1).lower()) if found else None


def _strip_markup(line: str) -> str:
    """Strip bullets, numbers, and backticks around the whole line."""
    line = _LIST_MARKERS.sub("", line, count=1).rstrip()
    if len(line) > 2 and line[0] == line[-1] == "`" and line.count("`") == 2:
        line = line[1:-1].strip()
    return line


def _get_first_group(groups: "tuple[str | None, ...]") -> str:
    return next(group for group in groups if group)


def _read_block(lines: "list[str]", at: int) -> "tuple[str | None, int]":
    """Return the content of the fenced block that starts at the next non-empty line, and the line after it."""
    while at < len(lines) and not lines[at].strip():
        at += 1
    fence = _FENCE.match(lines[at]) if at < len(lines) else None
    if not fence:
        return None, at
    indent = len(lines[at]) - len(lines[at].lstrip())
    inside: "list[str]" = []
    for number in range(at + 1, len(lines)):
        line = lines[number]
        if line.strip().startswith(fence.group(1)) and not line.strip().strip("`~"):
            return "".join(inner_line + "\n" for inner_line in inside), number + 1
        inside.append(line[indent:] if not line[:indent].strip() else line)
    return "".join(inner_line + "\n" for inner_line in inside), len(lines)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES[found.group(1)], text)
