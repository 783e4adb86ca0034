"""Commit messages: check subjects against Conventional Commits, suggest corrections, and handle trailers.

A subject is what git derives from a message: the lines of its first paragraph, joined. A message that passes the check
when it is committed therefore passes again when it is pushed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sandyard.platform.domain.git.errors import CommitMessageError
from sandyard.platform.domain.repositories.model import Commit, Identity

TYPES = ("feat", "fix", "docs", "style", "refactor", "perf", "test", "build", "ci", "chore", "revert")
_MAX_TRAILER_LENGTH = 500
MAX_DESCRIPTION_LENGTH = 100
"""Maximum length of the description, in characters."""

CONVENTIONAL = re.compile(rf"^({'|'.join(TYPES)})(\(.+\))?!?: .{{1,{MAX_DESCRIPTION_LENGTH}}}$")

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LOOSE_SUBJECT = re.compile(
    r"\[?\s*(?P<type>[A-Za-z]{2,20})\s*\]?\s*(?:\((?P<scope>[^()]*)\))?\s*(?P<breaking>!?)\s*(?P<end>[:\u2013\u2014-]|\])?\s*(?P<rest>.*)"
)
_TRAILER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*: \S.*")
_FENCED = re.compile(r"^[ \t]*(`{3,}|~{3,}).*?(?:^[ \t]*\1|\Z)", re.MULTILINE | re.DOTALL)
_MARKUP = re.compile(r"^(?:[>#*+-]+\s+|\d+[.)]\s+|@[\w-]+[,:]?\s+)+")
_HEADING_OR_POSITION = re.compile(r".*:(?:\d+(?:-\d+)?(?: \(.*\))?)?")
_MAX_NAMED_COMMITS = 10
_MAX_SUMMARIZED = 10_000  # characters
_PLACEHOLDER = "update"

# other names that people use for the types
_ALIASES = {
    **dict.fromkeys("feature features enhancement enhance improvement".split(), "feat"),
    **dict.fromkeys("bug bugfix hotfix fixes fixed bugs patch".split(), "fix"),
    **dict.fromkeys("doc documentation".split(), "docs"),
    **dict.fromkeys("styles styling format formatting lint".split(), "style"),
    **dict.fromkeys("refactoring refactors cleanup".split(), "refactor"),
    **dict.fromkeys("performance optimization optimisation".split(), "perf"),
    **dict.fromkeys("tests testing".split(), "test"),
    **dict.fromkeys("deps dependencies dependency packaging".split(), "build"),
    **dict.fromkeys("workflow pipeline".split(), "ci"),
    **dict.fromkeys("chores misc maintenance wip".split(), "chore"),
    **{word: word for word in TYPES},
}
# the type of a subject, by its first word
_VERBS = {
    **dict.fromkeys("add adds added implement implements implemented introduce support allow enable".split(), "feat"),
    **dict.fromkeys("create creates created make provide".split(), "feat"),
    **dict.fromkeys("correct corrects corrected repair resolve resolves resolved prevent avoid handle".split(), "fix"),
    **dict.fromkeys("document documents documented explain describe".split(), "docs"),
    **dict.fromkeys("reformat reindent".split(), "style"),
    **dict.fromkeys("rename renames renamed extract move moves moved simplify restructure rewrite".split(), "refactor"),
    **dict.fromkeys("reorganise reorganize split inline deduplicate clean".split(), "refactor"),
    **dict.fromkeys("optimise optimize speed accelerate cache".split(), "perf"),
    **dict.fromkeys("bump upgrade upgrades upgraded downgrade pin".split(), "build"),
    **dict.fromkeys("reverts reverted undo".split(), "revert"),
}


def get_subject(message: str) -> str:
    """Return the subject as `git log --format=%s` shows it."""
    lines = [line.rstrip(" \t\r") for line in message.split("\n")]
    while lines and not lines[0]:
        lines.pop(0)
    paragraph = lines[: lines.index("")] if "" in lines else lines
    return " ".join(paragraph)


def check_message(message: str) -> None:
    """Raise CommitMessageError with the problem and the whole corrected message, which keeps all of the text."""
    subject = get_subject(message)
    if CONVENTIONAL.fullmatch(subject) and not _UNPRINTABLE.search(message.replace("\r\n", "\n")):
        return
    corrected = _correct_message(message)
    raise CommitMessageError(f"{_describe_problem(subject)} Example: {get_subject(corrected)}", corrected)


def check_commits(commits: Sequence[Commit]) -> None:
    """Raise CommitMessageError that names each commit with a non-conventional subject. Merge commits are exempt."""
    bad = [commit for commit in commits if len(commit.parents) < 2 and not CONVENTIONAL.fullmatch(commit.subject)]
    if not bad:
        return
    named = "; ".join(
        f"{commit.id[:10]} “{_shorten(commit.subject)}” → {suggest_subject(commit.subject)}"
        for commit in bad[:_MAX_NAMED_COMMITS]
    )
    more = f"; and {len(bad) - _MAX_NAMED_COMMITS} more" if len(bad) > _MAX_NAMED_COMMITS else ""
    count = "One commit does not follow" if len(bad) == 1 else f"{len(bad)} commits do not follow"
    raise CommitMessageError(
        f"{count} the message convention, and nothing was pushed. Reword: {named}{more}.",
        suggest_subject(bad[0].subject),
    )


def suggest_subject(subject: str) -> str:
    """Return the corrected subject, or the same one if it is valid. The result always passes the check."""
    plain = _normalize(subject)
    if CONVENTIONAL.fullmatch(plain):
        return plain
    type_, scope, breaking, rest = _parse_loosely(plain)
    scope = f"({scope})" if scope else ""
    return f"{type_}{scope}{breaking}: {_truncate(_clean_description(rest)) or _PLACEHOLDER}"


def summarize(text: str) -> str:
    """Return the first line of a message to an agent that says what to do, without Markdown and mentions; empty if there is none.

    Skips code, headings that end with a colon, and positions such as `src/app.py:12-14`, which precede comments on changes.
    """
    lines = [_MARKUP.sub("", _normalize(line)) for line in _FENCED.sub("", text[:_MAX_SUMMARIZED]).splitlines()]
    found = (line.replace("`", "").replace("**", "") for line in lines if not _HEADING_OR_POSITION.fullmatch(line))
    return next((line for line in found if re.search(r"\w", line)), "")


def add_trailers(message: str, co_authors: Iterable[Identity]) -> str:
    """Append a trailer for each co-author who is not yet named in the message."""
    text = message.replace("\r\n", "\n").rstrip()
    named = text.lower()
    lines: list[str] = []
    for person in co_authors:
        name, email = _strip_brackets(person.name), _strip_brackets(person.email)
        if f"<{email.lower()}>" not in "".join(_find_co_author_lines(named)):
            lines.append(f"Co-authored-by: {name} <{email}>")
            named += "\n" + lines[-1].lower()
    if not lines:
        return text
    return text + ("\n" if _ends_with_trailers(text) else "\n\n") + "\n".join(lines)


def parse_co_authors(message: str) -> list[Identity]:
    """Return the co-authors named in the trailers, in order."""
    found = []
    for line in _find_co_author_lines(message):
        person = line[:_MAX_TRAILER_LENGTH].partition(":")[2]
        name, _, email = person[:-1].partition("<") if person.endswith(">") else ("", "", "")
        if name.strip() and email.split() == [email] and not {"<", ">"} & set(name + email):
            found.append(Identity(name.strip(), email))
    return found


def _find_co_author_lines(message: str) -> list[str]:
    return [line.strip() for line in message.splitlines() if line.lower().startswith("co-authored-by:")]


def _describe_problem(subject: str) -> str:
    if not subject:
        return "The commit has no message."
    kind, colon, _ = subject.partition(": ")
    if colon and CONVENTIONAL.fullmatch(f"{kind}: x"):
        if len(subject) > len(kind) + 2 + MAX_DESCRIPTION_LENGTH:
            return (
                f"The description after “{_shorten(kind)}:” has more than {MAX_DESCRIPTION_LENGTH} characters. Put the rest into the "
                "message body."
            )
        return "The commit message contains unprintable characters."
    return (
        f"The commit subject “{_shorten(subject)}” does not follow the convention: a type ({', '.join(TYPES)}), an optional "
        f"scope in parentheses, a colon, a space, and a description of at most {MAX_DESCRIPTION_LENGTH} characters."
    )


def _correct_message(message: str) -> str:
    subject = get_subject(message)
    corrected = suggest_subject(subject)
    body = _UNPRINTABLE.sub("", _extract_body(message).replace("\r\n", "\n")).strip("\n").rstrip()
    whole = _normalize(subject)
    full_subject = (
        [whole] if len(whole) > MAX_DESCRIPTION_LENGTH and not corrected.endswith(_parse_loosely(whole)[3]) else []
    )
    return "\n\n".join([corrected, *full_subject, *([body] if body else [])])


def _extract_body(message: str) -> str:
    lines = [line.rstrip(" \t\r") for line in message.split("\n")]
    while lines and not lines[0]:
        lines.pop(0)
    return "\n".join(lines[lines.index("") :]) if "" in lines else ""


def _normalize(text: str) -> str:
    return " ".join(_UNPRINTABLE.sub(" ", text.replace("\n", " ")).split())


def _parse_loosely(plain: str) -> tuple[str, str, str, str]:
    """Return the type, scope, "!" and description, as far as they can be recognized."""
    match = _LOOSE_SUBJECT.fullmatch(plain)
    if match is None:
        return _guess_type(plain), "", "", plain
    word = match["type"].lower()
    marked = bool(match["end"] or match["scope"] is not None or plain.startswith("["))
    if marked and word in _ALIASES:
        return _ALIASES[word], " ".join((match["scope"] or "").split())[:40].strip(), match["breaking"], match["rest"]
    return _guess_type(plain), "", "", plain


def _guess_type(plain: str) -> str:
    words = [word for word in re.split(r"[^a-z]+", plain.lower()) if word]
    first = words[0] if words else ""
    if first in _VERBS and not ({"test", "tests"} & set(words[1:4])):
        kind = _VERBS[first]
        return "docs" if kind == "feat" and {"readme", "docs", "documentation"} & set(words) else kind
    if {"test", "tests"} & set(words[:4]):
        return "test"
    if {"readme", "docs", "documentation", "changelog", "typo"} & set(words):
        return "docs"
    return _ALIASES.get(first, "chore")


def _clean_description(rest: str) -> str:
    text = rest.strip().lstrip(":-\u2013\u2014] ").rstrip(" .")
    first, space, others = text.partition(" ")
    if first[:1].isupper() and first[1:].islower():  # not a name such as API or GitHub
        first = first[:1].lower() + first[1:]
    return first + space + others


def _truncate(text: str) -> str:
    if len(text) <= MAX_DESCRIPTION_LENGTH:
        return text
    whole = text[: MAX_DESCRIPTION_LENGTH + 1].rpartition(" ")[0]
    return (whole if len(whole) > MAX_DESCRIPTION_LENGTH // 2 else text[:MAX_DESCRIPTION_LENGTH]).rstrip(" ,;:.-")


def _shorten(text: str) -> str:
    plain = _normalize(text)
    return plain if len(plain) <= 72 else plain[:71] + "…"


def _strip_brackets(text: str) -> str:
    return " ".join(re.sub(r"[<>]", "", _UNPRINTABLE.sub("", text)).split())


def _ends_with_trailers(text: str) -> bool:
    head, blank, last = text.rpartition("\n\n")
    return bool(blank and head) and all(_TRAILER.fullmatch(line) for line in last.split("\n"))
