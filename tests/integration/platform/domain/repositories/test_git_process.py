from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from sandyard.kit import dns_lookup
from sandyard.kit.destinations import Destinations
from sandyard.kit.errors import NoSpaceError, SandyardError
from sandyard.kit.secret import Secret
from sandyard.platform.domain.repositories import git_process
from sandyard.platform.domain.repositories.error_translation import create_mask, translate_error
from sandyard.platform.domain.repositories.errors import (
    BranchMovedError,
    GitFailedError,
    GitTimeoutError,
    RemoteMissingError,
    RemoteRefusedError,
    RemoteRejectedError,
    RemoteUnreachableError,
    RepositoryInvalidError,
    TooMuchError,
)
from sandyard.platform.domain.repositories.git_environment import prepare_environment
from sandyard.platform.domain.repositories.git_process import Git, find_git_problem
from sandyard.platform.domain.repositories.model import Credential
from sandyard.platform.domain.repositories.remote import parse_remote
from tests.forge.exchange import Exchange, Server
from tests.forge.gitserver import GitServer


@pytest.fixture
def git(tmp_path: Path) -> Git:
    return Git(tmp_path / "git", timeout_s=30)


@pytest.fixture
def server() -> Iterator[GitServer]:
    with GitServer() as opened:
        yield opened


async def list_remote(git: Git, url: str, credential: Credential | None = None) -> str:
    done = await git.run("ls-remote", url, cwd=None, remote=parse_remote(url), credential=credential)
    return done.stdout.decode()


def with_token(text: str) -> Credential:
    return Credential(token=Secret(text))


async def test_a_token_gives_access_to_its_remote(git: Git, server: GitServer) -> None:
    site = server.repository("acme/website", files={"a": "a"})
    assert site.head("main") in await list_remote(git, site.url, with_token(server.tokens.make("ada").text))
    with pytest.raises(RemoteRefusedError):
        await list_remote(git, site.url)
    with pytest.raises(RemoteRefusedError):
        await list_remote(git, site.url, with_token("ghp_wrong"))
    with pytest.raises(RemoteMissingError):
        await list_remote(git, f"{server.url}/acme/other.git", with_token(server.tokens.make("ada").text))


async def test_a_token_is_in_no_command_line_environment_or_file(git: Git, server: GitServer, tmp_path: Path) -> None:
    """Checked while git waits for the response of the server."""
    site, token = server.repository("acme/website", files={"a": "a"}), server.tokens.make("ada").text
    gate = server.faults.hold("refs")
    listing = asyncio.create_task(list_remote(git, site.url, with_token(token)))
    await asyncio.to_thread(gate.wait)
    forms = (token.encode(), base64.b64encode(f"x-access-token:{token}".encode()))
    seen = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, variables = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"ls-remote" in words or b"remote-http" in words:
            seen += 1
            assert not any(form in words + variables for form in forms)
    assert seen >= 2, "git and its helper are running"
    for path in (tmp_path / "git").rglob("*"):
        assert path.is_dir() or not any(form in path.read_bytes() for form in forms)
    gate.release()
    assert site.head("main") in await listing


class RedirectingServer:
    """A server that redirects every request to another one; with `requires_token`, only requests with a token."""

    def __init__(self, target: str, *, requires_token: bool) -> None:
        self.target, self.requires_token = target, requires_token
        self.authorizations: list[str] = []

    def handle(self, exchange: Exchange) -> None:
        authorization = exchange.headers.get("Authorization")
        if self.requires_token and authorization is None:
            exchange.answer(401, {"WWW-Authenticate": 'Basic realm="x"'})
            return
        self.authorizations += [authorization] if authorization else []
        exchange.answer(301, {"Location": f"{self.target}{exchange.path}?{exchange.query}"})


class RecordingGitServer(GitServer):
    def __init__(self) -> None:
        super().__init__()
        self.authorizations: list[str | None] = []

    def handle(self, exchange: Exchange) -> None:
        self.authorizations.append(exchange.headers.get("Authorization"))
        super().handle(exchange)


@pytest.mark.parametrize("requires_token", [False, True])
async def test_the_token_is_not_sent_to_the_target_of_a_redirect(
    git: Git, tmp_path: Path, requires_token: bool
) -> None:
    with RecordingGitServer() as other:
        site = other.repository("acme/website", files={"a": "a"}, anonymous=True)
        first = RedirectingServer(other.url, requires_token=requires_token)
        server = Server(first)
        server.start()
        url = f"{server.url}/acme/website.git"
        remote, credential = parse_remote(url), with_token("ghp_secret")
        fetch = ("fetch", url, "refs/heads/main")
        try:
            await git.run("init", "--bare", "-q", str(tmp_path / "x.git"), cwd=None)
            with (
                pytest.raises(RemoteMissingError, match="redirects to another URL") if requires_token else nullcontext()
            ):
                await git.run(*fetch, cwd=tmp_path / "x.git", remote=remote, credential=credential)
            site.private = True  # it now requires a token, and must not get the token of another server
            with pytest.raises(RemoteRefusedError):
                await list_remote(git, url, credential)
        finally:
            server.stop()
    assert bool(first.authorizations) is requires_token, "the first server gets the token only if it requires one"
    assert len(other.authorizations) >= 2, "the other server received requests"
    assert set(other.authorizations) == {None}


def resolve_forge_to(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Resolve forge.example to this address in this process; git could not resolve it."""

    async def answer(host: str) -> list[dns_lookup.Address]:
        return [ipaddress.ip_address(address)]

    monkeypatch.setattr(dns_lookup, "query_name_servers", answer)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "url", ["http://forge.example/a/b.git", "git@forge.example:a/b.git", "ssh://forge.example:2222/a/b"]
)
async def test_a_remote_in_a_private_network_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    resolve_forge_to(monkeypatch, "10.9.8.7")
    guarded = Git(tmp_path / "git", timeout_s=30, destinations=Destinations())
    with pytest.raises(RepositoryInvalidError, match=r"forge\.example is in a private network"):
        await list_remote(guarded, url)


async def test_a_path_on_this_machine_is_rejected_if_no_administrator_is_responsible(git: Git, tmp_path: Path) -> None:
    guarded = Git(tmp_path / "git", timeout_s=30, destinations=Destinations(), samples=tmp_path / "samples")
    for path in (tmp_path / "samples" / "one.git", tmp_path / "git" / "other.git", tmp_path / "repository.git"):
        await git.run("init", "--quiet", "--bare", str(path), cwd=None)
        trusted = replace(parse_remote(str(path)), trusted=True)
        await guarded.run("ls-remote", str(path), cwd=None, remote=trusted)
        if path.parent.name == "samples":
            assert await list_remote(guarded, str(path)) == ""
        else:
            with pytest.raises(RepositoryInvalidError, match="owned by an administrator may use"):
                await list_remote(guarded, str(path))


async def test_git_connects_to_the_address_that_was_checked(
    tmp_path: Path, server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = server.repository("acme/website", files={"a": "a"}, anonymous=True)
    with pytest.raises(RepositoryInvalidError, match="private network"):
        await list_remote(Git(tmp_path / "git", timeout_s=30, destinations=Destinations()), site.url)
    assert server.requests == []
    resolve_forge_to(monkeypatch, "127.0.0.1")
    guarded = Git(tmp_path / "git", timeout_s=30, destinations=Destinations(["127.0.0.1"]))
    assert str(site.head("main")) in await list_remote(guarded, site.url.replace("127.0.0.1", "forge.example"))
    url = "http://127.0.0.1:1/a/b"
    trusted = replace(parse_remote(url), trusted=True)
    with pytest.raises(RemoteUnreachableError):
        await Git(tmp_path / "git", timeout_s=30, destinations=Destinations()).run(
            "ls-remote", url, cwd=None, remote=trusted
        )


async def test_a_redirect_to_another_server_is_not_followed(tmp_path: Path) -> None:
    with RecordingGitServer() as other:
        other.repository("acme/website", files={"a": "a"}, anonymous=True)
        server = Server(RedirectingServer(other.url, requires_token=False))
        server.start()
        guarded = Git(tmp_path / "git", timeout_s=30, destinations=Destinations(["127.0.0.1"]))
        try:
            with pytest.raises(RemoteMissingError, match="redirects to another URL"):
                await list_remote(guarded, f"{server.url}/acme/website.git")
        finally:
            server.stop()
        assert other.authorizations == []


@pytest.mark.parametrize(
    ("url", "alias"),
    [("git@forge.example:a/b", "forge.example"), ("ssh://forge.example:2222/a/b", "[forge.example]:2222")],
)
def test_ssh_connects_to_the_address_that_was_checked(tmp_path: Path, url: str, alias: str) -> None:
    with prepare_environment(tmp_path, None, parse_remote(url), addresses=["192.0.2.7", "192.0.2.8"]) as around:
        words = shlex.split(around.environment["GIT_SSH_COMMAND"])
    assert "HostName=192.0.2.7" in words
    assert f"HostKeyAlias={alias}" in words


async def test_a_token_is_not_sent_over_plain_http(git: Git) -> None:
    with pytest.raises(RepositoryInvalidError, match="https://"):
        await list_remote(git, "http://git.example.com/acme/website", with_token("ghp_secret"))


async def test_a_token_with_a_line_break_is_rejected(git: Git) -> None:
    with pytest.raises(RemoteRefusedError, match="line break"):
        await list_remote(git, "http://127.0.0.1:1/a/b", with_token("ghp_x\nhost=evil"))


async def test_the_users_own_git_configuration_is_ignored(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[alias]\n    mine = version\n[user]\n    name = Mallory\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "user.name")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "Mallory")
    with pytest.raises(GitFailedError):
        await git.run("mine", cwd=None)
    assert (await git.run("config", "user.name", cwd=None, ok=(1,))).stdout == b""


async def test_only_the_protocol_of_the_remote_is_allowed(git: Git, tmp_path: Path) -> None:
    await git.run("init", "--bare", "-q", str(tmp_path / "x.git"), cwd=None)
    for url in (str(tmp_path / "x.git"), "http://127.0.0.1:1/x", "git://127.0.0.1/x", "ext::touch /tmp/never"):
        with pytest.raises(GitFailedError, match="not allowed"):
            await git.run("ls-remote", url, cwd=None)
        with pytest.raises(GitFailedError, match="not allowed"):
            await git.run("ls-remote", url, cwd=None, remote=parse_remote("h:x"))


async def test_a_repository_above_the_git_folder_is_ignored(git: Git, tmp_path: Path) -> None:
    await git.run("init", "-q", str(tmp_path), cwd=None)
    with pytest.raises(GitFailedError, match="not a git repository"):
        await git.run("status", cwd=None)


async def test_progress_is_reported_in_words_and_percent(git: Git, server: GitServer, tmp_path: Path) -> None:
    site = server.repository("acme/website", files={f"f{number}": str(number) for number in range(30)}, anonymous=True)
    reported: list[tuple[str, int | None]] = []
    await git.run("init", "--bare", "-q", str(tmp_path / "x.git"), cwd=None)
    done = await git.run(
        *("fetch", "--progress", site.url, "main"),
        cwd=tmp_path / "x.git",
        remote=parse_remote(site.url),
        progress=lambda what, percent=None: reported.append((what, percent)),
    )
    assert ("Counting objects", 100) in reported
    assert ("Receiving objects", 100) in reported
    assert "%" not in done.stderr


async def test_output_is_bounded(git: Git) -> None:
    await git.run("init", "--bare", "-q", "x.git", cwd=None)
    done = await git.run("hash-object", "-w", "--stdin", cwd=git.folder / "x.git", stdin=b"x" * (4 << 20))
    blob = done.stdout.decode().strip()
    limited = await git.run("cat-file", "blob", blob, cwd=git.folder / "x.git", limit=1000)
    assert (len(limited.stdout), limited.truncated) == (1000, True)
    whole = await git.run("cat-file", "blob", blob, cwd=git.folder / "x.git", limit=4 << 20)
    assert (len(whole.stdout), whole.truncated) == (4 << 20, False)


async def test_excess_output_does_not_delay_the_end(git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late reader finds so much output that asyncio has stopped reading."""
    await git.run("init", "--bare", "-q", "x.git", cwd=None)
    done = await git.run("hash-object", "-w", "--stdin", cwd=git.folder / "x.git", stdin=b"x" * (4 << 20))
    collect = git_process.read_stdout

    async def collect_late(stream: asyncio.StreamReader, limit: int) -> tuple[bytes, bool]:
        await asyncio.sleep(0.5)
        return await collect(stream, limit)

    monkeypatch.setattr(git_process, "read_stdout", collect_late)
    repository = git.folder / "x.git"
    assert (await git.run("cat-file", "blob", done.stdout.decode().strip(), cwd=repository, limit=1000)).truncated

    async def never_collect(stream: asyncio.StreamReader, limit: int) -> tuple[bytes, bool]:
        return await asyncio.Event().wait(), False  # type: ignore[return-value]

    monkeypatch.setattr(git_process, "read_stdout", never_collect)
    async with asyncio.timeout(20):
        with pytest.raises(GitTimeoutError):
            await git.run("cat-file", "blob", done.stdout.decode().strip(), cwd=repository, timeout_s=0.5)


async def test_endless_output_does_not_block_the_event_loop(git: Git) -> None:
    """Git forwards messages of a remote and can write faster than they are read."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    counting = asyncio.create_task(count_turns())
    with pytest.raises(GitTimeoutError):
        await git.run("-c", "alias.flood=!yes remote: >&2", "flood", cwd=None, timeout_s=0.5)
    counting.cancel()
    assert turns > 3


async def test_input_can_be_bytes_or_a_file(git: Git, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"one\ntwo\n")
    assert (await git.run("stripspace", cwd=None, stdin=b"one\ntwo\n")).stdout == b"one\ntwo\n"
    assert (await git.run("stripspace", cwd=None, stdin=tmp_path / "in")).stdout == b"one\ntwo\n"
    with (tmp_path / "in").open("rb", buffering=0) as file:
        file.seek(4)
        assert (await git.run("stripspace", cwd=None, stdin=file)).stdout == b"two\n"


def list_processes(marker: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


async def test_a_timeout_or_a_cancellation_ends_git_and_its_children(git: Git, server: GitServer) -> None:
    site = server.repository("acme/website", files={"a": "a"}, anonymous=True)
    gate = server.faults.hold("refs")
    started = time.monotonic()
    with pytest.raises(GitTimeoutError, match="ls-remote"):
        await git.run("ls-remote", site.url, cwd=None, remote=parse_remote(site.url), timeout_s=1)
    assert time.monotonic() - started < 25, "earlier than the default timeout"
    assert not list_processes(site.url)
    gate.release()
    gate = server.faults.hold("refs")
    listing = asyncio.create_task(list_remote(git, site.url))
    await asyncio.to_thread(gate.wait)
    assert list_processes(site.url)
    listing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listing
    assert not list_processes(site.url)
    gate.release()


async def test_a_git_that_ignores_sigterm_is_killed_even_after_repeated_cancellation(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that cancels twice, as on shutdown, does not wait any longer."""
    started = tmp_path / "begun"
    (tmp_path / "bin").mkdir()
    stubborn = tmp_path / "bin" / "git"
    stubborn.write_text(f"#!/bin/sh\ntrap '' TERM\ntouch {started}\nwhile :; do sleep 1; done\n")
    stubborn.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stubborn.parent}:{os.environ['PATH']}")
    task = asyncio.create_task(git.run("status", cwd=None))
    async with asyncio.timeout(30):
        while not started.exists():
            await asyncio.sleep(0.02)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0.1)
        while list_processes(str(stubborn)):
            await asyncio.sleep(0.02)


async def test_no_file_descriptor_is_left_open(git: Git, server: GitServer) -> None:
    site = server.repository("acme/website", files={"a": "a"})
    credential = with_token(server.tokens.make("ada").text)
    await list_remote(git, site.url, credential)

    def memory_files() -> list[str]:
        links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return [link for link in links if "memfd:" in link and ("git" in link or "ssh" in link)]

    assert memory_files() == []
    with prepare_environment(git.folder, credential, parse_remote(site.url)):
        assert len(memory_files()) == 2


@pytest.mark.parametrize(
    ("printed", "kind"),
    [
        ("fatal: Authentication failed for 'https://h/'", RemoteRefusedError),
        ("fatal: could not read Username for 'https://h': terminal prompts disabled", RemoteRefusedError),
        ("git@h: Permission denied (publickey).\nfatal: Could not read from remote repository.", RemoteRefusedError),
        ("remote: Permission to a/b.git denied to c.\nfatal: unable to access: The requested URL returned error: 403",
         RemoteRefusedError),
        ("fatal: repository 'https://h/a/' not found", RemoteMissingError),
        ("remote: Repository not found.\nfatal: ...", RemoteMissingError),
        ("fatal: '/x' does not appear to be a git repository\nfatal: Could not read from remote repository.",
         RemoteMissingError),
        ("fatal: unable to access 'https://h/': Could not resolve host: h", RemoteUnreachableError),
        ("ssh: connect to host h port 22: Connection refused\nfatal: Could not read from remote repository.",
         RemoteUnreachableError),
        ("fatal: unable to access: The requested URL returned error: 503", RemoteUnreachableError),
        ("error: RPC failed; curl 18 transfer closed\nfatal: early EOF", RemoteUnreachableError),
        ("fatal: the remote end hung up unexpectedly", RemoteUnreachableError),
        (" ! [rejected] a -> a (non-fast-forward)", BranchMovedError),
        (" ! [rejected] a -> a (fetch first)", BranchMovedError),
        ("remote: GH006: Protected branch\n ! [remote rejected] a -> a (protected branch hook declined)",
         RemoteRejectedError),
        ("fatal: write error: No space left on device", NoSpaceError),
        ("remote: fatal: No space left on device\n ! [remote rejected] a -> a (unpacker error)", RemoteRejectedError),
        ("fatal: bad revision 'x'", GitFailedError),
        ("fatal: write error: File too large\nfatal: fetch-pack: invalid index-pack output", TooMuchError),
        ("fatal: attempting to allocate 9 over limit 8\nfatal: fetch-pack: invalid index-pack output", TooMuchError),
        ("remote: write error: File too large\nfatal: early EOF", RemoteUnreachableError),
        ("fatal: inflate: out of memory", TooMuchError),
        ("fatal: Out of memory, malloc failed (tried to allocate 1048576 bytes)", TooMuchError),
        ("fatal: mmap failed: Cannot allocate memory", TooMuchError),
        ("remote: fatal: Out of memory, malloc failed\nfatal: early EOF", RemoteUnreachableError),
    ],
)  # fmt: skip
def test_messages_of_git_are_translated_to_errors(printed: str, kind: type[SandyardError]) -> None:
    error = translate_error(printed, "fetch")
    assert type(error) is kind
    assert error.message


def test_the_message_of_the_server_is_reported() -> None:
    output = "remote: \nremote: ======\nremote: Only release managers push here.\nTo h\n ! [remote rejected] a -> a (x)"
    assert "Only release managers push here." in translate_error(output, "push").message


def test_every_form_of_a_credential_is_masked() -> None:
    key = "-----BEGIN KEY-----\nb3BlbnNzaC1rZXktdjE\n-----END KEY-----"
    mask = create_mask(Credential(token=Secret("to/ken+1"), username="ada", ssh_key=Secret(key)))
    coded = base64.b64encode(b"ada:to/ken+1").decode()
    masked = mask(f"https://x:to/ken+1@h to%2Fken%2B1 Basic {coded} b3BlbnNzaC1rZXktdjE")
    assert masked == "https://x:***@h *** Basic *** ***"


async def test_a_credential_repeated_by_a_server_is_masked(git: Git, server: GitServer) -> None:
    site, token = server.repository("acme/website", files={"a": "a"}), server.tokens.make("ada").text
    site.reject(f"no entry for {token}")
    remote = parse_remote(site.url)
    with pytest.raises(RemoteRejectedError) as refused:
        await git.run(
            *("push", site.url, "HEAD:refs/heads/x"), cwd=site.path, remote=remote, credential=with_token(token)
        )
    assert "no entry for ***" in refused.value.message


@pytest.mark.parametrize("zero", ["", "\0"])
async def test_the_message_of_a_server_is_printable_and_bounded(git: Git, server: GitServer, zero: str) -> None:
    site, token = server.repository("acme/website", files={"a": "a"}), server.tokens.make("ada").text
    split_token = f"{token[:8]}\x1b[0m{token[8:]}"
    site.reject(f"Not today,{zero} \x1b[31mred\x1b[0m {split_token}\x07 \x85\u2028fatal: " + "much " * 300)
    with pytest.raises(RemoteRejectedError, match="Not today,") as refused:
        await git.run(
            *("push", site.url, "HEAD:refs/heads/x"),
            cwd=site.path,
            remote=parse_remote(site.url),
            credential=with_token(token),
        )
    message = refused.value.message
    assert message.isprintable()
    assert len(message) < 600
    if not zero:  # git itself drops some of the text after a NUL
        assert "Not today, red ***" in message


@pytest.mark.parametrize(
    "text", ["a\0b", "a\x1b[2Jb", "a\ud800b", "a\udcffb", "a\x9bb", "a\u2028b", "a\u202eb", "a\u200bb"]
)
def test_characters_that_cannot_be_stored_or_seen_are_removed_from_errors(text: str) -> None:
    for line in (f"fatal: {text}", f"remote: {text}\n ! [remote rejected] a -> a (x)"):
        message = translate_error(line, "push").message
        assert message.isprintable()
        message.encode()


async def test_the_size_of_a_file_written_by_git_is_bounded(git: Git) -> None:
    await git.run("init", "--bare", "-q", "x.git", cwd=None)
    repository = git.folder / "x.git"
    content = bytes(hashlib.shake_256(b"x").digest(300_000))
    hashing = ("hash-object", "-w", "--stdin")
    with pytest.raises(TooMuchError, match="git_repository_limit"):
        await git.run(*hashing, cwd=repository, stdin=content, max_file_size=200_000)
    done = await git.run(*hashing, cwd=repository, stdin=content, max_file_size=400_000)
    assert (await git.run("cat-file", "blob", done.stdout.decode().strip(), cwd=repository)).stdout == content
    with pytest.raises(GitFailedError, match="nothing-like-it"):
        await git.run("nothing-like-it", cwd=repository, max_file_size=1)


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("git version 2.39.5", None),
        ("git version 2.38.0.windows.1", None),
        ("git version 3.0.0", None),
        ("git version 2.34.1", "git version 2.34.1 is too old"),
        ("something else", "something else is too old"),
        (None, "Git is not installed on this machine"),
    ],
)
def test_a_missing_or_old_git_is_reported(
    version: str | None, problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if version is not None:
        (tmp_path / "git").write_text(f"#!/bin/sh\necho '{version}'\n")
        (tmp_path / "git").chmod(0o755)
    found = find_git_problem()
    assert found is None if problem is None else found is not None and found.startswith(problem)
