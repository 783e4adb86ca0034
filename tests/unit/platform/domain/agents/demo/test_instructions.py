"""Test how the demo agent distinguishes instructions from prose."""

from __future__ import annotations

import pytest

from sandyard.platform.domain.agents.demo.instructions import Step, parse_prompt


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("create a.txt: one\\ntwo\\\\n", Step("create", "one\ntwo\\n", "a.txt")),
        ("1) Create the file `a b.txt`: x", Step("create", "x", "a b.txt")),
        ("Append to README.md: hi: you", Step("append", "hi: you", "README.md")),
        ("* replace 'a b': x -> y", Step("replace", "y", "a b", "x")),
        ("replace a: x =>", Step("replace", "", "a", "x")),
        ("- [ ] Delete old.txt", Step("delete", "", "old.txt")),
        ("> run: printf 'a\\nb'", Step("run", "printf 'a\\nb'")),
        ("`run: ls`", Step("run", "ls")),
        ("Commit: fix: a", Step("commit", "fix: a")),
        ("sleep: 2 s", Step("sleep", "2 s")),
        ("Crash.", Step("crash")),
    ],
)
def test_a_line_is_parsed_as_one_step(line: str, step: Step) -> None:
    assert parse_prompt(line).steps == [step]
    assert parse_prompt(f"Some prose.\r\n{line}\r\n\r\nMore of it.").steps == [step]
    fix = parse_prompt(f"Fix: {line.lstrip('`').rstrip('`')}")
    if not line.startswith(("1", "*", "-", ">")):
        assert (fix.steps, parse_prompt("\n".join(fix.fixes)).steps) == ([], [step])


@pytest.mark.parametrize(
    "prose",
    [
        "",
        "Create a login page: it should work.",
        "Delete the old files",
        "Crash the system, and hang around",
        "Plan the work: first this, then that",
        "Replace all of it",
        "create something nice",
        "FAIL: test_div (tests.test_calc.TestCalc)",
        "It says:\n```\nrun: rm -rf x\ncrash\n```",
        "fix: the login",
    ],
)
def test_prose_contains_no_instructions(prose: str) -> None:
    assert parse_prompt(prose) == ([], [])


def test_fenced_block_belongs_to_line_above() -> None:
    text = "1. create a.py:\n\n   ```python\n   run: no\n     deeper\n   ```\nappend b\n~~~\nx\n```\n~~~\nsay: end\ncreate c\n```\nopen"
    assert parse_prompt(text).steps == [
        Step("create", "run: no\n  deeper\n", "a.py"),
        Step("append", "x\n```\n", "b"),
        Step("say", "end"),
        Step("create", "open\n", "c"),
    ]
    fixes = parse_prompt("fix: create d:\n```\nrun: no\n```\nrun: yes\nfix: commit: fix: it\n```\nsay: quoted\n```")
    assert fixes.steps == [Step("run", "yes")]
    assert parse_prompt("\n".join(fixes.fixes)).steps == [Step("create", "run: no\n", "d"), Step("commit", "fix: it")]
