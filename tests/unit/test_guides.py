"""The commands in the documents are commands of this version, and their links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sandyard.engine.settings import EngineSettings
from sandyard.platform.settings import PlatformSettings
from tests.documents import guides, routes, settings

DOCUMENTS = [path for path in guides.list_documents() if path.name != guides.HISTORY]


def commands_of(program: str) -> list[guides.Command]:
    return [command for path in DOCUMENTS for command in guides.list_commands(path) if command.words[0] == program]


def test_every_sandyard_command_is_accepted_by_its_parser() -> None:
    commands = commands_of("sandyard")
    assert len(commands) > 100
    refused = list[str]()
    for command in commands:
        try:
            guides.check_sandyard(command)
        except click.UsageError as error:
            refused.append(f"{command}\n  {error.format_message()}")
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sandyard tsk list", "no command 'tsk'"),
        ("sandyard task ad TEXT", "no command 'ad'"),
        ("sandyard task add --projet x", "No such option"),
        ("sandyard task add a b", "unexpected"),
        ("sandyard task add 'a' --attempts many", "not a valid integer"),
        ("sandyard project add website", "Missing"),
        ("make up && sandyard run", "Missing"),
    ],
)
def test_wrong_commands_are_refused(text: str, message: str) -> None:
    words = guides.split_commands(text)[-1]
    with pytest.raises(click.UsageError) as caught:
        guides.check_sandyard(guides.Command("x.md", 1, words, complete=True))
    assert message.lower() in caught.value.format_message().lower()


def test_commands_are_found_in_shell() -> None:
    text = "export A=1 B=2\n# a comment\nA=3 sandyard up --port 1 > log  # more\n{ echo a; cat b; } | sandyard \\\n  login 'x # y'\n"
    assert guides.split_commands(text) == [
        ("export", "A=1", "B=2"),
        ("sandyard", "up", "--port", "1"),
        ("echo", "a"),
        ("cat", "b"),
        ("sandyard", "login", "x # y"),
    ]


def test_no_guide_changes_into_a_folder_that_only_root_may_enter() -> None:
    """`sudo` cannot change the shell's folder, so the commands after it would run somewhere else."""
    blocks = [
        (path.name, token.content)
        for path in DOCUMENTS
        for token in guides.parse(path)
        if token.type == "fence" and token.info.strip() == "sh"
    ]
    closed = {
        (name, text, folder) for name, text in blocks for folder in re.findall(r"sudo install -d -m 0?700 (\S+)", text)
    }
    assert closed, "no guide creates such a folder any more"
    wrong = [
        f"{name}: {folder}"
        for name, text, folder in closed
        if any(words[:2] == ("cd", folder) for words in guides.split_commands(text))
    ]
    assert not wrong


def test_every_make_target_exists() -> None:
    commands = commands_of("make")
    assert len(commands) > 10
    targets = guides.list_make_targets()
    wrong = [
        str(command)
        for command in commands
        for word in command.words[1:]
        if re.fullmatch(r"[a-z][a-z-]*", word) and word not in targets
    ]
    assert not wrong, "\n".join(wrong)


def test_every_request_is_a_route_of_the_api() -> None:
    paths = routes.build_document()["paths"]
    known = [
        (method.upper(), re.sub(r"\\{\w+\\}", "[^/?]+", re.escape(path))) for path in paths for method in paths[path]
    ]
    requests = [
        candidate for candidate in commands_of("curl") if any(word.startswith("$API") for word in candidate.words)
    ]
    assert requests
    for command in requests:
        (address,) = [word for word in command.words if word.startswith("$API")]
        words = command.words
        method = words[words.index("-X") + 1] if "-X" in words else "PUT" if "-T" in words else "GET"
        path = address.replace("$API", "/api/v1").partition("?")[0]
        assert any(method == verb and re.fullmatch(pattern, path) for verb, pattern in known), f"{command} is no route"


def test_every_variable_exists() -> None:
    known = {
        setting.variable for kind in (PlatformSettings, EngineSettings) for setting in settings.list_settings(kind)
    }
    sources = "".join(path.read_text() for path in (guides.ROOT / "src").rglob("*.py"))
    for path in DOCUMENTS:
        missing = {name for name in guides.list_variables(path) - known if f'"{name}' not in sources}
        assert not missing, f"{path.name} names variables that do not exist: {missing}"


def test_variables_are_found() -> None:
    assert guides.list_variables(guides.ROOT / "docs/team.md") >= {"SANDYARD_PUBLIC_URL", "SANDYARD_PREVIEW_DOMAIN"}


def test_every_program_in_python_is_valid() -> None:
    programs = [(path, text) for path in DOCUMENTS for text in guides.list_programs(path, "python")]
    assert len(programs) > 5
    for path, text in programs:
        compile(text, path.name, "exec")


def _list_programs() -> Iterator[tuple[guides.Command, str]]:
    for path in DOCUMENTS:
        for command in guides.list_commands(path):
            yield from ((command, word) for word in command.words if word.startswith("scripts/"))


def test_every_script_exists() -> None:
    assert [f"{command}: {word}" for command, word in _list_programs() if not (guides.ROOT / word).is_file()] == []


@pytest.mark.parametrize("path", guides.list_documents(), ids=lambda path: path.relative_to(guides.ROOT).as_posix())
def test_links_lead_to_files_and_headings(path: Path) -> None:
    assert [f"{link}: {wrong}" for link in guides.list_links(path) if (wrong := guides.check_link(link))] == []


def test_broken_links_are_found() -> None:
    checked = {
        "start.md": None,
        "start.md#next": None,
        "start.md#nowhere": "heading",
        "nowhere.md": "file",
        "decisions": "file",
        "../../etc/passwd": "file",
        "conf.py#next": "heading",
    }
    for target, wrong in checked.items():
        found = guides.check_link(guides.Link("docs/index.md", 1, target))
        assert (found is None) if wrong is None else (found is not None and wrong in found), target
