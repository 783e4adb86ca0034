"""A real git server over HTTP: `git http-backend` with bare repositories in its own directory, protected by tokens.

    with GitServer() as server:
        site = server.repository("acme/website", files={"README.md": "# Website\\n"})
        token = server.tokens.make("ada")                      # .text; write=False, repositories=[…], expires_in_s=…
        run("git clone", site.url)                             # Basic with any user name and the token, or Bearer
        server.faults.cut("push", after=500)                   # see faults.py
        site.commit({"a.txt": "a"}, branch="main")             # a push of another user; see repositories.py
        server.requests                                        # all requests, with the status of their answers

It listens on loopback in its own threads, so that tests with and without an event loop can use it. Reading a private repository
(the default) needs a token; `anonymous=True` creates one that everybody may read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.forge.exchange import PIECE, CutError, Exchange, Server
from tests.forge.faults import Fault, Faults, On
from tests.forge.repositories import Files, Repository
from tests.forge.tokens import Token, Tokens, parse_token

SERVICES = ("git-upload-pack", "git-receive-pack")
PROBE = b"0000"
"""What git sends before a push in chunks, to check its access. It uses up no fault."""


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    what: On
    login: str | None
    exchange: Exchange

    @property
    def status(self) -> int | None:
        """Return the status of the answer. None if there is none yet, or if the connection was cut."""
        return self.exchange.answered


class GitServer:
    """Serves the repositories while the `with` block runs. Subclasses may serve more in `handle`."""

    def __init__(self, port: int = 0) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="sandyard-forge-"))
        self.tokens = Tokens()
        self.faults = Faults()
        self.requests: list[ReceivedRequest] = []
        self.repositories: dict[str, Repository] = {}
        self._server = Server(self, port)
        self.url = self._server.url

    def __enter__(self) -> GitServer:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self.faults.clear()
        self._server.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def repository(
        self, slug: str, *, files: Files | None = None, default_branch: str = "main", anonymous: bool = False
    ) -> Repository:
        """Create a repository with `files` as its first commit. None: the repository is empty."""
        created = Repository(self.root, slug, f"{self.url}/{slug}.git", private=not anonymous)
        created.create(default_branch)
        if files is not None:
            created.commit(files, "chore: first")
        self.repositories[slug.lower()] = created
        return created

    def handle(self, exchange: Exchange) -> None:
        self.handle_git(exchange)

    def handle_git(self, exchange: Exchange) -> None:
        """Handle a request of git: faults, access and the answer."""
        exchange.close_afterwards()  # curl retries by itself if a reused connection is cut
        slug, _, rest = exchange.path.lstrip("/").partition(".git/")
        service = rest if exchange.method == "POST" else exchange.query.removeprefix("service=")
        if service not in SERVICES or rest not in {service, "info/refs"}:
            exchange.answer(404, {"Content-Type": "text/plain"}, b"Not Found\n")
            return
        pieces = exchange.pieces()
        first = next(pieces, b"")
        what = _classify_request(exchange, service, first)
        token = self.tokens.find_by_header(exchange.headers.get("Authorization"))
        # recorded before the answer: a test may check it as soon as it has the answer
        self.requests.append(
            ReceivedRequest(exchange.method, exchange.path, what, token.login if token else None, exchange)
        )
        self._answer(exchange, slug, service, what, token, first, pieces)

    def _answer(
        self,
        exchange: Exchange,
        slug: str,
        service: str,
        what: On,
        token: Token | None,
        first: bytes,
        pieces: Iterator[bytes],
    ) -> None:
        if delay := self.faults.take("slow", what):
            time.sleep(delay.seconds)
        if failure := self.faults.take("answer", what):
            exchange.answer(failure.status, {"Content-Type": "text/plain", **failure.headers}, failure.body)
            return
        repository = self.repositories.get(slug.lower())
        if refusal := self._find_refusal(exchange, repository, service, token):
            status, text = refusal
            challenge = {"WWW-Authenticate": 'Basic realm="GitHub"'} if status == 401 else {}
            exchange.answer(status, {"Content-Type": "text/plain", **challenge}, f"{text}\n".encode())
            return
        assert repository is not None, "requests for missing repositories are refused before"
        probe = first == PROBE and what == "git"
        if not probe and (before := self.faults.take("before", what)) and before.act:
            before.act()
        Backend(self, exchange, repository, what, token).run(first, pieces)

    def _find_refusal(
        self, exchange: Exchange, repository: Repository | None, service: str, token: Token | None
    ) -> tuple[int, str] | None:
        """Return the status and message with which GitHub refuses the request. None if it is allowed."""
        writes = service == "git-receive-pack"
        if parse_token(exchange.headers.get("Authorization")) is not None and token is None:
            return 401, "Invalid username or token. Password authentication is not supported for Git operations."
        if token is None and (repository is None or repository.private or writes):
            return 401, "No anonymous write access." if writes else "Repository not found."
        if repository is None or (token is not None and repository.private and not token.reaches(repository.slug)):
            return 404, "Repository not found."
        if token is not None and writes and not (token.write and token.reaches(repository.slug)):
            return 403, f"Permission to {repository.slug}.git denied to {token.login}."
        return None


class Backend:
    """One `git http-backend` for one request."""

    def __init__(
        self, server: GitServer, exchange: Exchange, repository: Repository, what: On, token: Token | None
    ) -> None:
        self._faults, self._exchange, self._repository, self._what = server.faults, exchange, repository, what
        variables = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_PROJECT_ROOT": str(server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_HTTP_MAX_REQUEST_BUFFER": "100M",
            "REQUEST_METHOD": exchange.method,
            "PATH_INFO": f"/{repository.slug}.git/{exchange.path.partition('.git/')[2]}",
            "QUERY_STRING": exchange.query,
            "CONTENT_TYPE": exchange.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": exchange.headers.get("Content-Encoding", ""),
            "HTTP_GIT_PROTOCOL": exchange.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        if exchange.length is not None:
            variables["CONTENT_LENGTH"] = str(exchange.length)
        if token is not None:
            variables["REMOTE_USER"] = token.login
        pipe = subprocess.PIPE
        command = ["git", "http-backend"]
        self._process = subprocess.Popen(
            command, env=variables, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._feed_error: BaseException | None = None

    def run(self, first: bytes, pieces: Iterator[bytes]) -> None:
        """Relay the request and its answer. Raises CutError if the connection must end."""
        feeder = threading.Thread(target=self._feed, args=(first, pieces), daemon=True)
        feeder.start()
        try:
            self._relay(feeder)
        finally:
            self._kill()
            self._process.wait()
            feeder.join()
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):
                    pipe and pipe.close()
            if self._what == "push":
                self._repository.changed(self._repository)

    def _kill(self) -> None:
        """Kill the backend and its child processes: a backend whose body never arrives would wait for it in a busy loop."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _relay(self, feeder: threading.Thread) -> None:
        out = self._process.stdout
        assert out is not None
        status, headers = _read_head(out)
        if self._what == "push":
            answer = b"".join(iter(lambda: out.read1(PIECE), b""))  # type: ignore[attr-defined]
            feeder.join()
            if self._feed_error is not None:
                raise CutError("the push was cut") from self._feed_error
            self._process.wait()
            self._repository.changed(self._repository)
            if self._faults.take("cut_answer", self._what):
                raise CutError("the push has arrived, but its answer is lost")
            self._exchange.stream(status, headers, [answer])
            return
        pieces = self._apply_faults(iter(lambda: out.read1(PIECE), b""))  # type: ignore[attr-defined]
        self._exchange.stream(status, headers, pieces)

    def _apply_faults(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the answer up to the point at which a fault cuts or holds it."""
        cut, hold = self._faults.take("cut", self._what), self._faults.take("hold", self._what)
        yield from _cut_or_hold(pieces, cut, hold)

    def _feed(self, first: bytes, pieces: Iterator[bytes]) -> None:
        """Send the request's body to git. A fault that cuts a push cuts its body, and git gets no more of it."""

        def body() -> Iterator[bytes]:
            yield first
            yield from pieces

        push = self._what == "push"
        cut = self._faults.take("cut", self._what) if push else None
        hold = self._faults.take("hold", self._what) if push else None
        stdin = self._process.stdin
        assert stdin is not None
        try:
            for piece in _cut_or_hold(body(), cut, hold):
                stdin.write(piece)
                stdin.flush()
        except (CutError, OSError, ValueError) as error:
            if not isinstance(error, BrokenPipeError):
                self._feed_error = error
                self._kill()
                self._exchange.cut()
        finally:
            with contextlib.suppress(OSError):
                stdin.close()


def _cut_or_hold(pieces: Iterator[bytes], cut: Fault | None, hold: Fault | None) -> Iterator[bytes]:
    """Yield the pieces up to the cut. If there are fewer bytes than that, the last byte is lost."""
    passed, kept = 0, b""
    for piece in pieces:
        if hold and passed + len(piece) > hold.after:
            _wait_at_gate(hold)
            hold = None
        if cut and passed + len(piece) > cut.after:
            yield kept
            yield piece[: max(0, cut.after - passed)]
            raise CutError("cut by a test")
        passed += len(piece)
        if cut:
            yield kept + piece[:-1]
            kept = piece[-1:]
        else:
            yield piece
    if hold:
        _wait_at_gate(hold)
    if cut:
        raise CutError("cut by a test, before the last byte")


def _wait_at_gate(fault: Fault) -> None:
    if fault.gate is not None:
        fault.gate.hold()
        if fault.gate.is_cut:
            raise CutError("cut by a test at its gate")


def _classify_request(exchange: Exchange, service: str, first: bytes) -> On:
    """Return the kind of the request, for matching faults. In protocol version 2, listing branches is also a POST."""
    if exchange.method == "GET":
        return "refs"
    if service == "git-receive-pack":
        return "git" if first == PROBE else "push"
    return "refs" if b"command=ls-refs" in first else "fetch"


def _read_head(out: IO[bytes]) -> tuple[int, dict[str, str]]:
    """Read the status and the headers of a CGI answer."""
    status, headers = 200, {}
    while line := out.readline().decode("latin-1").strip():
        name, _, value = line.partition(":")
        if name.lower() == "status":
            status = int(value.split()[0])
        else:
            headers[name] = value.strip()
    return status, headers
