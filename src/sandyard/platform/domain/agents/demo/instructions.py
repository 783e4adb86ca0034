"""What a prompt tells the demo agent to do: instructions, one a line."""

# Old Pythons.
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
fix: INSTRUCTION (followed when the project's check fails)
fail: REASON
refuse
crash
hang"""

_LEAD = re.compile(r"^\s*(?:(?:[-*+•>]|\d{1,4}[.)]|\[[ xX]\])\s+)*")
_PATH = r"""(?:`([^`]+)`|"([^"]+)"|'([^']+)'|([^\s:`"']+))"""
_FILE = re.compile(r"(create|append)\s+(?:to\s+)?(?:(?:the\s+)?file\s+)?" + _PATH + r"\s*(:?)\s?(.*)$", re.IGNORECASE)
_REPLACE = re.compile(r"replace\s+(?:in\s+)?" + _PATH + r"\s*:\s?(.*?)\s(?:->|=>|→)(?:\s(.*))?$", re.IGNORECASE)
_DELETE = re.compile(r"delete\s+" + _PATH + r"\s*$", re.IGNORECASE)
_FIX = re.compile(r"fix\s*:\s*(.*)$", re.IGNORECASE)
_WORDS = re.compile(r"(run|commit|ask|permit|say|think|plan|fail|sleep)\s*:\s*(.*)$", re.IGNORECASE)
_ALONE = re.compile(r"(refuse|crash|hang)\s*[.!]?$", re.IGNORECASE)
_FENCE = re.compile(r"^\s*(```+|~~~+)")
_ESCAPE = re.compile(r"\\([nt\\])")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


class Step(NamedTuple):
    """`path` is that of a file verb, `old` what `replace` looks for."""

    verb: str
    text: str = ""
    path: str = ""
    old: str = ""


class Instructions(NamedTuple):
    """`steps` in order; without any, it is all prose. `fixes`: the lines of those to follow when something fails."""

    steps: "list[Step]"
    fixes: "list[str]"


def read(prompt: str) -> Instructions:
    """What is in a fenced block is the content of a file if it belongs to the line above, and quoted else."""
    steps: "list[Step]" = []
    fixes: "list[str]" = []
    lines = prompt.splitlines()
    at = 0
    while at < len(lines):
        if _FENCE.match(lines[at]):
            at = _block(lines, at)[1]
            continue
        line = _bare(lines[at])
        at += 1
        if line[1:2].isupper():  # `FAIL: test_login` is what a test runner prints
            continue
        fix = _FIX.match(line)
        told = fix.group(1) if fix else line
        file = _FILE.match(told)
        if fix and (file or _one(told)):
            after = _block(lines, at)[1] if file and not file.group(7) else at
            fixes += [told, *lines[at:after]]
            at = after
        elif file:
            verb, path = file.group(1).lower(), _path(file.groups()[1:5])
            colon, content = file.group(6), file.group(7)
            if not content:
                block, after = _block(lines, at)
                if block is not None:
                    steps.append(Step(verb, block, path))
                    at = after
                elif colon:
                    steps.append(Step(verb, "", path))
            elif colon:
                steps.append(Step(verb, _unescaped(content), path))
        else:
            step = _one(line)
            if step is not None:
                steps.append(step)
    return Instructions(steps, fixes)


def _one(line: str) -> "Step | None":
    found = _REPLACE.match(line)
    if found:
        old, new = _unescaped(found.group(5)), _unescaped(found.group(6) or "")
        return Step("replace", new, _path(found.groups()[:4]), old)
    found = _DELETE.match(line)
    if found:
        return Step("delete", "", _path(found.groups()))
    found = _WORDS.match(line)
    if found:
        verb, text = found.group(1).lower(), found.group(2).strip()
        return Step(verb, text if verb == "run" else _unescaped(text))
    found = _ALONE.match(line)
    return Step(found.group(1).lower()) if found else None


def _bare(line: str) -> str:
    """Without bullets and numbers, and without backticks around all of it."""
    line = _LEAD.sub("", line, count=1).rstrip()
    if len(line) > 2 and line[0] == line[-1] == "`" and line.count("`") == 2:
        line = line[1:-1].strip()
    return line


def _path(groups: "tuple[str | None, ...]") -> str:
    return next(group for group in groups if group)


def _block(lines: "list[str]", at: int) -> "tuple[str | None, int]":
    """What is in the fenced block that begins at the next line with something in it, and the line behind it."""
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
            return "".join(one + "\n" for one in inside), number + 1
        inside.append(line[indent:] if not line[:indent].strip() else line)
    return "".join(one + "\n" for one in inside), len(lines)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES[found.group(1)], text)
