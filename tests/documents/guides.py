"""Check what the documents promise: the commands in them, and the files and headings that they link to.

A block of the language `sh` is what a reader types. Every `sandyard …` in it must be accepted by the command's own parser, every
`make …` must be a target, and every request with curl a route of the API. Commands in running text (`sandyard task add`) may leave out
arguments.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
from markdown_it import MarkdownIt
from markdown_it.token import Token

from sandyard.cli.main import cli

ROOT = Path(__file__).parents[2]
HISTORY = "CHANGELOG.md"
"""Names commands and files as they were."""
SEPARATORS = frozenset(("&&", "||", ";", "|", "&", "(", ")", "{", "}", ";;"))
_PARSER = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Command:
    """A command in a document."""

    document: str
    line: int
    words: tuple[str, ...]
    complete: bool
    """Whether a reader can type it as it is, or it stands in running text."""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {shlex.join(self.words)}"


@dataclass(frozen=True)
class Link:
    document: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {self.target}"


def list_documents() -> list[Path]:
    """Return every document in the repository's root and in docs/."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def parse(path: Path) -> list[Token]:
    """Return a document's tokens."""
    return _PARSER.parse(path.read_text())


def list_programs(path: Path, language: str) -> list[str]:
    """Return the blocks of a language, such as `python`."""
    return [
        token.content for _, token in _walk(parse(path)) if token.type == "fence" and token.info.strip() == language
    ]


def list_commands(path: Path) -> Iterator[Command]:
    """Yield the commands of a document, in `sh` blocks and in running text."""
    name = path.relative_to(ROOT).as_posix()
    for line, token in _walk(parse(path)):
        if token.type == "fence" and token.info.strip() == "sh":
            for words in split_commands(token.content):
                yield Command(name, line, words, complete=True)
        elif token.type == "code_inline" and token.content.startswith(("sandyard ", "make ")):
            for words in split_commands(token.content)[:1]:
                yield Command(name, line, words, complete=False)


def split_commands(text: str) -> list[tuple[str, ...]]:
    """Return the simple commands of a piece of shell, without assignments, redirections and comments."""
    commands, words, is_target = list[tuple[str, ...]](), list[str](), False
    for word in _split_words(text):
        if is_target:
            is_target = False
        elif word in SEPARATORS:
            commands.append(tuple(words))
            words = []
        elif set(word) <= set("<>&"):
            is_target = True
        elif words or not re.fullmatch(r"\w+=.*", word, re.DOTALL):
            words.append(word)
    commands.append(tuple(words))
    return [command[1:] if command[0] == "sudo" else command for command in commands if command]


def _split_words(text: str) -> Iterator[str]:
    """Yield the words and operators of each line, and a separator after it."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
        lexer.whitespace_split = True
        yield from lexer
        yield ";"


def _walk(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """Yield all tokens, also those inside of others, with the line of their block."""
    line = 1
    for token in tokens:
        line = token.map[0] + 1 if token.map else line
        yield line, token
        for child in token.children or ():
            yield line, child


def check_sandyard(command: Command) -> None:
    """Parse a `sandyard …` command with the real parser. Raises click.UsageError."""
    current: click.Command = cli
    context = click.Context(cli, info_name="sandyard")
    words = list(command.words[1:])
    while isinstance(current, click.Group):
        _, words, _ = current.make_parser(context).parse_args(words)
        if not words or (not command.complete and not re.fullmatch(r"[a-z-]+", words[0])):
            return
        found = current.get_command(context, name := words.pop(0))
        if found is None:
            raise click.UsageError(f"There is no command {name!r}.", context)
        current, context = found, found.context_class(found, info_name=name, parent=context, **found.context_settings)
    if command.complete:
        _check_arguments(current, context, words)
    elif context.allow_interspersed_args:
        known = {option for param in current.get_params(context) for option in (*param.opts, *param.secondary_opts)}
        for word in words:
            if word.startswith("-") and (option := word.partition("=")[0]) not in known:
                raise click.NoSuchOption(option, ctx=context)


def _check_arguments(command: click.Command, context: click.Context, words: list[str]) -> None:
    """Parse arguments, without reading files, asking for values or running anything."""
    values, extra, _ = command.make_parser(context).parse_args(words)
    if extra and not context.allow_extra_args:
        raise click.UsageError(f"Got unexpected arguments: {extra}", context)
    for parameter in command.get_params(context):
        value = values.get(parameter.name or "")
        given = not (
            value is None or value == () or type(value).__name__ == "Sentinel" or repr(value) == "Sentinel.UNSET"
        )
        if not given and parameter.required:
            raise click.MissingParameter(ctx=context, param=parameter)
        if given and not isinstance(parameter.type, click.Path | click.File):
            parameter.type_cast_value(context, value)


@cache
def list_make_targets() -> frozenset[str]:
    """Return the targets of the Makefile."""
    return frozenset(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def list_variables(path: Path) -> set[str]:
    """Return the environment variables of Sandyard that a document names. Names that are cut short (`SANDYARD_TLS_…`) are not."""
    return set(re.findall(r"\bSANDYARD_[A-Z0-9_]*[A-Z0-9](?!_?[A-Z0-9…<])", path.read_text()))


def list_links(path: Path) -> Iterator[Link]:
    """Yield the links and images of a document that lead to files, and the files that are named in code spans."""
    name = path.relative_to(ROOT).as_posix()
    for line, token in _walk(parse(path)):
        target = (
            token.attrGet("href")
            if token.type == "link_open"
            else token.attrGet("src")
            if token.type == "image"
            else None
        )
        if isinstance(target, str) and not re.match(r"[a-z]+:", target):
            yield Link(name, line, target)


def check_link(link: Link) -> str | None:
    """Return what is wrong with a link, or None."""
    file, _, anchor = link.target.partition("#")
    document = ROOT / link.document
    target = (document.parent / file).resolve() if file else document
    if not target.is_relative_to(ROOT) or not target.is_file():
        return "there is no such file"
    if anchor and (target.suffix != ".md" or anchor not in list_anchors(target)):
        return "there is no such heading"
    return None


@cache
def list_anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a document's headings, as GitHub and the site name them."""
    anchors = list[str]()
    tokens = parse(path)
    for token, inline in itertools.pairwise(tokens):
        if token.type == "heading_open":
            text = "".join(child.content for child in inline.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            number = sum(1 for anchor in anchors if anchor == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", anchor))
            anchors.append(f"{slug}-{number}" if number else slug)
    return frozenset(anchors)
