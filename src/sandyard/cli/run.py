"""`sandyard run`: let an agent work on a repository and open a pull request, without any setup.

Finds or starts a platform, and finds or creates a project for the repository.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from sandyard.cli import config
from sandyard.cli.completion import complete_agents
from sandyard.cli.connection import MAX_ITEMS, connect, quote_segment
from sandyard.cli.errors import FAILED, ApiError, CommandError, NoResponseError, NotLoggedInError, NotSandyardError
from sandyard.cli.live.feed import INTERRUPTED
from sandyard.cli.live.screen import Screen
from sandyard.cli.options import drop_missing
from sandyard.cli.output import escape
from sandyard.cli.projects.connection_test import TEST_FAILED, run_connection_test
from sandyard.cli.tasks.add import make_task_body, split_title
from sandyard.cli.tasks.lookup import AgentNames
from sandyard.cli.tasks.progress import (
    TaskFollower,
    describe_end,
    describe_review,
    exit_interrupted,
    get_pull,
    is_successful,
)
from sandyard.kit.errors import SandyardError

if TYPE_CHECKING:
    from sandyard.cli.client import Client
    from sandyard.cli.up.background import Background

DEFAULT_PORT = 8700
GIT_SECONDS = 20
SAFE_GIT_SETTINGS = {"core.fsmonitor": "false", "core.hooksPath": "/dev/null"}
"""Git settings that make it safe to inspect an untrusted repository, whose configuration may name programs."""
FILTER_PROGRAM_SUFFIXES = (b".clean", b".process", b".required")
"""Settings that name programs which git would run for a filter."""
STATUS_COMMAND = ("status", "--porcelain", "--ignore-submodules=all")


@click.command()
@click.argument("text")
@click.option("--repo", required=True, help="Git repository: a local directory or a URL.")
@click.option(
    "--agent",
    shell_complete=complete_agents,
    help="Agent to use.  [default: the project's, or the one that fits the first model provider]",
)
@click.option("--model", help="Model to use.")
@click.option("--base", help="Branch to start from and to merge into.  [default: the repository's default branch]")
@click.option(
    "--verify", metavar="COMMAND", help="Command that must succeed before anything is pushed, such as `make test`."
)
@click.option(
    "--token-from", "variable", metavar="NAME", help="Environment variable that holds the repository's token."
)
@click.option(
    "--budget-usd", type=click.FloatRange(min=0, min_open=True), help="Stop when models have cost this many US dollars."
)
@click.option("--keep", is_flag=True, help="Keep the platform running if this command started it.")
def run(
    *,
    text: str,
    repo: str,
    agent: str | None,
    model: str | None,
    base: str | None,
    verify: str | None,
    variable: str | None,
    budget_usd: float | None,
    keep: bool,
) -> None:
    """Let an agent work on the task TEXT in a repository and follow it until its pull request is open; `-` reads TEXT from standard input.

    Uses the running platform. If there is none, one is started for the duration of this command. A project is created for the
    repository if there is none. The last line on standard output is the pull request's URL, or the pushed branch if the remote has no
    pull requests.
    """
    title, description = split_title(sys.stdin.read() if text == "-" else text)
    token = read_token(variable)
    repository = resolve_repository(repo, is_local=config.load().is_local)
    with Screen() as screen, open_platform(screen, keep=keep) as (client, background):
        if note := describe_uncommitted(repository):
            screen.print_note(note)
        project = ensure_project(client, repository, token=token, verify=verify, screen=screen)
        body = make_task_body(title, description, agent=agent, model=model, base=base, budget_usd=budget_usd)
        task = client.post("/tasks", {**body, "projectId": project["id"], "start": True})
        screen.print_note(f"Task {task['id']}: {escape(task['title'])}")
        _warn_about_demo_agents(client, task, screen)
        try:
            task = TaskFollower(client, task, screen).run()
        except KeyboardInterrupt:
            if background is None or keep:
                exit_interrupted(screen, task)
            screen.print_note(
                f"\nThe task continues when the platform runs again: sandyard up; sandyard task logs {task['id']} --follow"
            )
            sys.exit(INTERRUPTED)
        finally:
            if background is not None and not keep:
                _pause_sandboxes(client, task)
        for line in describe_end(task):
            screen.print_note(line)
        for line in describe_review(task, repository):
            screen.print_note(line)
        if pull := get_pull(task):
            has_number = pull.get("number") is not None  # otherwise the remote has no pull requests
            screen.print_line(escape(str(pull["url"] if has_number else pull.get("headBranch") or "")))
    if not is_successful(task):
        sys.exit(FAILED)


def _warn_about_demo_agents(client: Client, task: Any, screen: Screen) -> None:
    agents = AgentNames(client)
    names = {str(attempt["agent"]) for attempt in task.get("attempts") or [] if agents.is_demo(attempt["agent"])}
    for name in sorted(names):
        screen.print_note(
            f"{agents.format_label(name)} is not a real agent: it only follows step-by-step instructions. "
            "Choose another with --agent; list them with `sandyard agent list`."
        )


def _pause_sandboxes(client: Client, task: Any) -> None:
    """Pause the task's sandboxes, which would otherwise keep running without a platform."""
    with contextlib.suppress(SandyardError):
        task = client.get(f"/tasks/{quote_segment(task['id'])}")
        for attempt in task.get("attempts") or []:
            with contextlib.suppress(SandyardError):
                session = client.get(f"/sessions/{quote_segment(attempt['sessionId'])}")
                if (session.get("sandbox") or {}).get("status") == "running":
                    client.post(f"/sessions/{quote_segment(attempt['sessionId'])}/pause")


@contextlib.contextmanager
def open_platform(screen: Screen, *, keep: bool) -> Iterator[tuple[Client, Background | None]]:
    """Yield a client for the running platform, or for one that is started now and stopped afterwards. In that case also yield its
    background process."""
    login = config.load()
    if _is_running(login):
        with connect(login) as client:
            yield client, None
        return
    port = urlsplit(login.url).port or DEFAULT_PORT
    with _start_platform(login, port, screen, keep=keep) as (login, background), connect(login) as client:
        yield client, background


def _is_running(login: config.Login) -> bool:
    """Return False if nothing responds at this address and a platform can be started there. Otherwise errors are raised."""
    try:
        with connect(login) as client:
            client.get("/me")
    except NotSandyardError:
        raise
    except NoResponseError:
        if not login.is_local or login.url.startswith("https:"):
            raise
        return False
    except ApiError as error:
        if error.http_status != 401:
            raise
        raise NotLoggedInError(f"{error.message} To log in, run `sandyard login {login.url}`.") from None
    return True


@contextlib.contextmanager
def _start_platform(
    login: config.Login, port: int, screen: Screen, *, keep: bool
) -> Iterator[tuple[config.Login, Background]]:
    from sandyard.cli.up.background import Background  # noqa: PLC0415 - only needed if no platform is running

    background = Background(port, keep=keep)
    has_token = login.token is not None
    screen.print_note(f"No platform is running at {login.url}. Starting one with its data in {background.data_dir}.")
    screen.set_status("starting the engine")
    screen.redraw()

    def show_progress(text: str) -> None:
        screen.set_status(text)
        screen.redraw()

    background.start(show_progress, new_token=not has_token and not background.is_new)
    try:
        if background.token is not None:
            login = config.Login(background.url, background.token)
            if not os.environ.get("SANDYARD_TOKEN"):
                screen.print_note(f"Logged in as its administrator. Saved to {config.save(login)}.")
        with connect(login) as client:
            client.get("/me")
        yield login, background
    finally:
        if keep:
            screen.print_note(f"The platform keeps running. {_describe_process(background)}")
        else:
            screen.set_status("stopping the platform")
            screen.redraw()
            background.stop()
            screen.print_note(
                "Stopped the platform, which was started only for this command. To keep one running: sandyard up"
            )


def _describe_process(background: Background) -> str:
    with contextlib.suppress(OSError):
        process_id = (background.data_dir / "up.lock").read_text().strip()
        return f"To stop it: kill {process_id}. Its output is in {background.log}."
    return f"Its output is in {background.log}."


def resolve_repository(text: str, *, is_local: bool) -> str:
    """Return the repository address for the platform. Paths are made absolute. Raises CommandError if there is no repository."""
    if "://" in text or not text.strip():
        found = text.strip()
        if not found:
            raise CommandError("--repo is empty. Give a path or a URL.")
        return found
    path = Path(text).expanduser()
    if path.exists():
        if not is_local:
            raise CommandError(
                f"{text} is a local path, but the platform runs on another machine. Give the URL of a repository that it can reach."
            )
        path = path.resolve()
        folder = next((parent for parent in (path, *path.parents) if (parent / ".git").exists()), None)
        if (path / "HEAD").exists() and (path / "objects").is_dir():
            folder = path  # a bare repository
        if folder is None:
            raise CommandError(f"{path} is not a git repository. Create one with `git init`.")
        if folder != path:
            raise CommandError(f"{path} is inside the repository {folder}. Use --repo {shlex.quote(str(folder))}.")
        if _read_git(folder, "for-each-ref", "--count=1", "refs/heads") == "":
            raise CommandError(
                f"{folder} has no commit yet. Create one to start from: git -C {shlex.quote(str(folder))} commit "
                "--allow-empty -m 'Initial commit'"
            )
        return str(folder)
    if ":" in text and not text.startswith(("/", ".", "~")):
        return text  # user@host:path
    raise CommandError(
        f"{text} is neither a directory nor the address of a repository. Give an existing directory, a URL or user@host:path."
    )


def describe_uncommitted(repository: str) -> str | None:
    """Return a note about uncommitted changes in a local repository, which the agent will not see. None if there are none."""
    if "://" in repository or not (Path(repository) / ".git").exists():
        return None
    if not (lines := (_read_git(Path(repository), *STATUS_COMMAND) or "").splitlines()):
        return None
    what = "1 file is" if len(lines) == 1 else f"{len(lines)} files are"
    return f"{what} not committed in {escape(repository)}. The agent only sees committed changes."


def _read_git(folder: Path, *arguments: str) -> str | None:
    """Return git's output, or None if it fails. Programs that the repository's configuration names are never run."""
    names = (_run_git(folder, {}, "config", "-z", "--name-only", "--list") or b"").split(b"\0")
    filters = [name for name in names if name.startswith(b"filter.") and name.endswith(FILTER_PROGRAM_SUFFIXES)]
    output = _run_git(folder, SAFE_GIT_SETTINGS | {os.fsdecode(name): "" for name in filters}, *arguments)
    return None if output is None else output.decode(errors="replace").strip()


def _run_git(folder: Path, settings: Mapping[str, str], *arguments: str) -> bytes | None:
    """Run git. `settings` are passed as environment variables, because `-c` cannot set a name that contains `=`."""
    existing_count = os.environ.get("GIT_CONFIG_COUNT", "")
    first_index = int(existing_count) if existing_count.isdigit() else 0
    variables = {"GIT_CONFIG_COUNT": str(first_index + len(settings))}
    for index, (name, value) in enumerate(settings.items(), first_index):
        variables |= {f"GIT_CONFIG_KEY_{index}": name, f"GIT_CONFIG_VALUE_{index}": value}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env={
                **os.environ,
                **variables,
                "GIT_ALLOW_PROTOCOL": "",
                "GIT_NO_LAZY_FETCH": "1",
                "GIT_OPTIONAL_LOCKS": "0",
            },
            capture_output=True,
            check=True,
            timeout=GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def ensure_project(client: Client, repository: str, *, token: str | None, verify: str | None, screen: Screen) -> Any:
    """Return the project of this repository, or a new one, after testing its connection. Raises CommandError with the reason if that
    fails."""
    projects = client.list_items("/projects", MAX_ITEMS)["items"]
    for project in projects:
        if project.get("repository") and _normalise(project["repository"]) == _normalise(repository):
            return _update_project(client, project, repository, token=token, verify=verify, screen=screen)
    body = drop_missing(
        name=_choose_name(repository, {project["name"] for project in projects}),
        repository=repository,
        settings={"verify": {"command": verify}} if verify else None,
        token=token,
        test=True,
    )
    try:
        created = client.post("/projects", body)
    except ApiError as error:
        if error.problem_code != TEST_FAILED:
            raise
        raise _make_unusable_error(error.details, repository, token) from None
    screen.print_note(f"Added project {escape(created['name'])} for {escape(repository)}.")
    return created


def _update_project(
    client: Client, project: Any, repository: str, *, token: str | None, verify: str | None, screen: Screen
) -> Any:
    """Store the token and the verify command if they were given, and test the connection."""
    path = f"/projects/{quote_segment(project['id'])}"
    settings = project.get("settings") or {}
    if verify is not None and (settings.get("verify") or {}).get("command") != (verify or None):
        settings = {**settings, "verify": {**(settings.get("verify") or {}), "command": verify or None}}
        project = client.patch(path, {"settings": settings})
        shown_command = f"`{escape(verify)}`" if verify else "none"
        screen.print_note(f"Changed the verify command of project {escape(project['name'])}: {shown_command}")
    if token is not None:
        client.request("PUT", f"{path}/credentials", body={"token": token})
    result = run_connection_test(client, project["id"])
    if not result["ok"]:
        raise _make_unusable_error(result, repository, token)
    return project


def _make_unusable_error(result: Any, repository: str, token: str | None) -> CommandError:
    """Return the error for a failed connection test."""
    problems = "; ".join(escape(finding["detail"]).rstrip(".") for finding in result["findings"] if not finding["ok"])
    hint = "" if token is not None else " To pass a token from the environment variable NAME, use --token-from NAME."
    return CommandError(f"Cannot use the repository: {problems}.{hint if '://' in repository else ''}")


def _normalise(repository: str) -> str:
    return repository.strip().rstrip("/").removesuffix(".git").rstrip("/")


def _choose_name(repository: str, taken: set[str]) -> str:
    """Return, for example, `website`, or `website-2` if that is taken."""
    first = _normalise(repository).replace(":", "/").rpartition("/")[2] or "repository"
    name, number = first, 1
    while name in taken:
        number += 1
        name = f"{first}-{number}"
    return name


def read_token(variable: str | None) -> str | None:
    """Return the value of the environment variable. Raises CommandError if it is not set or empty."""
    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise CommandError(f"The environment variable {variable} is not set or empty.")
    return value
