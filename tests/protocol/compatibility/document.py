"""docs/e2b-compatibility.md, from what a run of the tests has noted."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .verbs import ASYNC, CLI, JS, SYNC, Verb, noun, snake

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parents[1]
TARGET = ROOT / "docs" / "e2b-compatibility.md"
NOTES = TESTS / "compatibility.toml"
COLUMNS = (SYNC, ASYNC, JS)
LETTERS = 3
"""A word of a verb's name that tells something has more of them."""
FIRST = ("Sandbox", "Commands", "CommandHandle", "Filesystem", "Pty", "Git", "Template", "Sandbox (code interpreter)")

OPENING = """# What works of E2B

Made by `make compatibility` from a run of the tests with the unmodified SDKs and the CLI; do not edit it by hand. Every
public verb is in here, found by looking at the packages: {versions}.

- **works** names one test that calls the verb, against a real engine, and passes.
- **differs** works too; what is not as on E2B is said below the table.
- **not covered**: no test calls it.
- An empty cell: that SDK has no such verb. Names are Python's; JavaScript spells `run_code` as `runCode`.

Functions and classes that ask no server (`wait_for_port`, results, charts) are not listed. To point a client here:
`E2B_API_URL`, `E2B_SANDBOX_URL`, `E2B_VOLUME_API_URL` and `E2B_API_KEY`, for the CLI too. Sandboxes have limits of memory, CPU and disk as
asked for, and `get_metrics` shows them; programs inside that ask the kernel (`free`, `nproc`, `df`) see the machine's.
"""


@dataclass(frozen=True, slots=True)
class Note:
    """What a person has to know about a verb, in one sentence, and the test that shows it; in every language."""

    verb: str
    says: str
    test: str | None = None
    """None for a verb that no test can call; `says` has the reason."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A test, and how many verbs it called. Of several tests the one that names a verb is about it, or calls least."""

    file: str
    name: str
    calls: int


def notes() -> list[Note]:
    return [Note(**entry) for entry in tomllib.loads(NOTES.read_text())["note"]]


def read(folder: Path) -> dict[Verb, Seen]:
    """What a run has noted, each verb with the test that is most about it."""
    best: dict[Verb, Seen] = {}
    for test, called in _recorded(folder):
        for verb in called:
            known = best.get(verb)
            if known is None or _distance(verb, test) < _distance(verb, known):
                best[verb] = test
    return best


def _distance(verb: Verb, test: Seen) -> tuple[bool, int, str, str]:
    named = any(word in f"{test.file} {test.name}".lower() for word in verb.name.split("_") if len(word) > LETTERS)
    return not named, test.calls, test.file, test.name


def _recorded(folder: Path) -> Iterator[tuple[Seen, list[Verb]]]:
    for path in sorted(folder.glob("python-*.json")):
        for test, called in json.loads(path.read_text()).items():
            file, _, name = test.partition("::")
            yield Seen(Path(file).name, name.partition("[")[0], len(called)), [Verb(*verb) for verb in called]
    for path in sorted(folder.glob("javascript-*.json")):
        run = json.loads(path.read_text())
        for test, called in run["passed"].items():
            yield Seen(f"js/{run['test']}", test, len(called)), [_javascript(name) for name in called]


def _javascript(called: str) -> Verb:
    package, _, name = called.partition(":")
    owner, _, method = name.partition(".")
    return Verb(JS, noun(owner, package.replace("@e2b/code-interpreter", "e2b_code_interpreter")), snake(method))


def write(verbs: Iterable[Verb], seen: Mapping[Verb, Seen], versions: Mapping[str, str]) -> str:
    """The document. The same run gives the same text."""
    verbs = sorted(set(verbs))
    noted = notes()
    listed = ", ".join(f"`{name}` {version}" for name, version in versions.items())
    parts = [OPENING.format(versions=listed), *_counts(verbs, seen, noted)]
    nouns = sorted({verb.noun for verb in verbs if verb.language != CLI}, key=lambda name: (_rank(name), name))
    for name in nouns:
        parts += _section(name, [verb for verb in verbs if verb.noun == name], COLUMNS, seen, noted)
    parts += _section("CLI", [verb for verb in verbs if verb.language == CLI], (CLI,), seen, noted)
    return "\n".join(parts) + "\n"


def _rank(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def _counts(verbs: list[Verb], seen: Mapping[Verb, Seen], noted: list[Note]) -> Iterator[str]:
    yield "| | verbs | works | of these differs | not covered |"
    yield "|---|---|---|---|---|"
    about = {note.verb for note in noted if note.test}
    for column in (*COLUMNS, CLI):
        own = [verb for verb in verbs if verb.language == column]
        called = [verb for verb in own if verb in seen]
        differing = sum(verb.row in about for verb in called)
        yield f"| {column} | {len(own)} | {len(called)} | {differing} | {len(own) - len(called)} |"


def _section(
    name: str, verbs: list[Verb], columns: tuple[str, ...], seen: Mapping[Verb, Seen], noted: list[Note]
) -> Iterator[str]:
    yield f"\n## {name}\n"
    yield f"| verb | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    about = {note.verb for note in noted if note.test}
    for row in sorted({verb.row for verb in verbs}):
        there = {verb.language: verb for verb in verbs if verb.row == row}
        cells = [_cell(seen.get(there[column]), row in about) if column in there else "" for column in columns]
        yield f"| `{title(row)}` | {' | '.join(cells)} |"
    told = [note for note in noted if any(verb.row == note.verb for verb in verbs)]
    if told:
        yield ""
    for note in told:
        shown = f" ({_link(*note.test.split('::', 1))})" if note.test else ""
        yield f"- `{title(note.verb)}`: {note.says}{shown}"


def title(row: str) -> str:
    """How a verb is written in the document; a command of the CLI as it is typed."""
    return row.replace("e2b.", "e2b ", 1) if row.startswith("e2b.") else row


def _cell(seen: Seen | None, differs: bool) -> str:
    if seen is None:
        return "not covered"
    return f"{'differs' if differs else 'works'}: {_link(seen.file, seen.name)}"


def _link(file: str, name: str) -> str:
    return f"[{name.replace('|', '/')}](../tests/protocol/{file})"
