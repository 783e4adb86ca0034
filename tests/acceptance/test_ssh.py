"""Sandboxes by the real OpenSSH client: commands, files, forwarded ports; who is kept out, and what ends a connection."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandyard.kit.listen import free_port
from tests.acceptance.platform import Platform, ok, running, until
from tests.protocol.engine import Engine

pytestmark = pytest.mark.timeout(300)
SANDYARD = str(Path(sys.executable).with_name("sandyard"))
LARGE = 20 << 20
PASSWORD = "a long enough password"


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine) as platform:
        yield platform


@dataclass
class Desk:
    """A person's machine: a home of their own, and OpenSSH set up with one command."""

    platform: Platform
    home: Path
    token: str

    @property
    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "SANDYARD_", "XDG_"))}
        return kept | {"HOME": str(self.home), "SANDYARD_URL": self.platform.url, "SANDYARD_TOKEN": self.token}

    def run(self, *words: str, stdin: bytes = b"", check: bool = True) -> subprocess.CompletedProcess[bytes]:
        words = (
            (words[0], "-F", str(self.home / ".ssh/config"), *words[1:])
            if words[0] in {"ssh", "scp", "sftp"}
            else words
        )
        done = subprocess.run(words, input=stdin, capture_output=True, env=self.variables, timeout=120, check=False)
        assert not check or done.returncode == 0, (words, done.returncode, done.stderr.decode())
        return done

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        pipe, start = subprocess.PIPE, ("ssh", "-F", str(self.home / ".ssh/config"))
        return subprocess.Popen(start + words, stdin=pipe, stdout=pipe, stderr=pipe, env=self.variables)

    @contextlib.contextmanager
    def forwarding(self, host: str, *words: str) -> Iterator[None]:
        process = self.begin("-N", "-o", "ExitOnForwardFailure=yes", *words, host)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)


@pytest.fixture(scope="module")
def desk(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """OpenSSH takes a person's home from the list of users: its settings are given by name, which changes nothing else."""
    made = Desk(platform, tmp_path_factory.mktemp("home"), platform.token)
    said = made.run(SANDYARD, "ssh-config", "--write").stdout.decode()
    assert "now includes" in said
    before = (made.home / ".ssh/config").read_text()
    assert "now includes" not in made.run(SANDYARD, "ssh-config", "--write").stdout.decode()
    assert (made.home / ".ssh/config").read_text() == before
    return made


@pytest.fixture(scope="module")
def session(platform: Platform) -> Iterator[dict[str, Any]]:
    made = ok(platform.client.post("/sessions", json={"envs": {"GREETING": 'he said "a\\b" # $HOME'}}), 201)
    yield made
    ok(platform.client.delete(f"/sessions/{made['id']}"), 204)


@pytest.fixture(scope="module")
def host(session: dict[str, Any]) -> str:
    return f"{session['id']}.sandyard"


def test_commands(desk: Desk, session: dict[str, Any], host: str) -> None:
    done = desk.run("ssh", host, 'echo "$GREETING"; id -un; pwd; echo oops >&2; exit 7', check=False)
    assert (done.stdout.decode(), done.returncode) == ('he said "a\\b" # $HOME\nuser\n/home/user\n', 7)
    assert done.stderr == b"oops\n"
    body = secrets.token_bytes(1 << 20)
    assert desk.run("ssh", host, "cat", stdin=body).stdout == body
    digest = desk.run("ssh", host, "sha256sum", stdin=body).stdout.split()[0].decode()
    assert digest == hashlib.sha256(body).hexdigest()
    shell = desk.run("ssh", "-tt", host, stdin=b"tty\nexit 5\n", check=False)
    assert (b"/dev/pts/" in shell.stdout, shell.returncode) == (True, 5)
    # the same without any settings, by the session's name and by the sandbox's
    ours = desk.run(SANDYARD, "ssh", session["id"], "--", "printf", "%s|", "a b", "$HOME")
    assert ours.stdout == b"a b|$HOME|"
    line = desk.run(SANDYARD, "ssh", session["sandboxId"], "--", "cat | tr a b; exit 3", stdin=b"aaa", check=False)
    assert (line.stdout, line.returncode) == (b"bbb", 3)


def test_the_environment_is_that_of_commands(
    desk: Desk, platform: Platform, session: dict[str, Any], host: str
) -> None:
    ours = "SHLVL PWD OLDPWD _ SSH_CLIENT SSH_CONNECTION MAIL".split()
    line = f"env {' '.join(f'-u {name}' for name in ours)} | sort"
    by_command = ok(platform.client.post(f"/sandboxes/{session['sandboxId']}/execute", json={"command": line}))
    assert desk.run("ssh", host, line).stdout.decode() == by_command["stdout"]


def test_files(desk: Desk, host: str, tmp_path: Path) -> None:
    body = secrets.token_bytes(LARGE)
    (tmp_path / "large").write_bytes(body)
    began = time.monotonic()
    desk.run("scp", "-q", str(tmp_path / "large"), f"{host}:large")
    between = time.monotonic()
    desk.run("scp", "-q", f"{host}:large", str(tmp_path / "back"))
    print(f"{LARGE >> 20} MiB: {between - began:.1f} s up, {time.monotonic() - between:.1f} s down")
    assert (tmp_path / "back").read_bytes() == body
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/leaf").write_text("green")
    desk.run("rsync", "-a", "-e", f"ssh -F {desk.home}/.ssh/config", f"{tmp_path}/tree", f"{host}:")
    assert desk.run("ssh", host, "cat tree/deep/leaf").stdout == b"green"
    (tmp_path / "small").write_bytes(body[:300_000])
    batch = f"mkdir box\nput {tmp_path}/small box/copy\nrename box/copy box/moved\nget box/moved {tmp_path}/again\nls -l box\n"
    listing = desk.run("sftp", "-q", "-b", "-", host, stdin=batch.encode()).stdout
    assert b"moved" in listing
    assert (tmp_path / "again").read_bytes() == body[:300_000]


def test_forwarded_ports(desk: Desk, host: str) -> None:
    """As editors do it: to a server that listens on loopback in the sandbox, by name (-L) and through SOCKS (-D)."""
    desk.run(
        "ssh", host, "echo hello > index.html; nohup python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 &"
    )
    local, socks = free_port(), free_port()
    with desk.forwarding(host, "-L", f"127.0.0.1:{local}:127.0.0.1:8123", "-D", f"127.0.0.1:{socks}"):

        def fetched() -> str | None:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{local}/", trust_env=False).text
            return None

        assert until(fetched) == "hello\n"
        with socket.create_connection(("127.0.0.1", socks), 30) as line:
            line.sendall(b"\x05\x01\x00")
            assert line.recv(2) == b"\x05\x00"
            line.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + struct.pack(">H", 8123))
            assert line.recv(10)[1] == 0
            line.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with line.makefile("rb") as answer:
                assert answer.read().endswith(b"hello\n")


def test_strangers_are_kept_out(
    desk: Desk, platform: Platform, session: dict[str, Any], host: str, tmp_path: Path
) -> None:
    client = platform.client
    other = ok(client.post("/users", json={"name": "other", "password": PASSWORD}), 201)
    token = _token_of(platform, "other")
    for wrong, sentence in ((token, "There is no"), ("sy_wrong", "token is invalid")):
        stranger = Desk(platform, desk.home, wrong)
        done = stranger.run("ssh", host, "true", check=False)
        assert done.returncode == 255
        assert sentence in done.stderr.decode()
    # one who has the connection, and not the key that was announced for it
    known = desk.home / ".config/sandyard/ssh/known_hosts" / host
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    bare = ("-F", "none", "-o", f"ProxyCommand={SANDYARD} ssh --stdio %n", "-o", f"IdentityFile={tmp_path}/key")
    words = ("ssh", *bare, "-o", "IdentitiesOnly=yes", "-o", f"UserKnownHostsFile={known}", f"user@{host}", "true")
    done = subprocess.run(words, capture_output=True, env=desk.variables, timeout=60, check=False)
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr.decode()
    keys = desk.run("ssh", "-G", host).stdout.decode()
    assert "identitiesonly yes" in keys
    assert "forwardagent no" in keys
    # a host that shows another key than the server has told
    assert known.read_text().startswith(f"{host} ssh-ed25519 ")
    (tmp_path / "known").write_text(f"{host} {' '.join((tmp_path / 'key.pub').read_text().split()[:2])}\n")
    done = desk.run("ssh", "-o", f"UserKnownHostsFile={tmp_path}/known", host, "true", check=False)
    assert done.returncode == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in done.stderr.decode()
    assert desk.run("ssh", "-A", host, 'echo "[$SSH_AUTH_SOCK]"').stdout == b"[]\n"
    ok(client.delete(f"/users/{other['id']}"))


@pytest.mark.slow
def test_a_revoked_token_ends_it(desk: Desk, platform: Platform, host: str) -> None:
    made = ok(platform.client.post("/tokens", json={"name": "short"}), 201)
    process = Desk(platform, desk.home, made["value"]).begin(host, "echo ready; sleep 300")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    ok(platform.client.delete(f"/tokens/{made['id']}"))
    _, complaint = process.communicate(timeout=60)
    assert "You no longer have access to this sandbox" in complaint.decode()
    until(
        lambda: (
            b"sshd"
            not in desk.run(SANDYARD, "sandbox", "exec", host.removesuffix(".sandyard"), "--", "ps", "ax").stdout
        ),
        patience=150,  # a guest that is not told of the end sees it by itself after 45 s
    )


def test_sleep_and_waking(desk: Desk, platform: Platform, session: dict[str, Any], host: str) -> None:
    client, path = platform.client, f"/sandboxes/{session['sandboxId']}"
    process = desk.begin(host, "echo ready; sleep 300")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    ok(client.post(f"{path}/pause"))
    _, complaint = process.communicate(timeout=60)
    assert "The sandbox was paused" in complaint.decode()
    remote = ok(client.get(f"/sessions/{session['id']}/remote"))
    assert (remote["sshHost"], remote["sshAvailable"]) == (host, None)
    assert ok(client.get(path))["status"] == "paused"
    assert desk.run("ssh", host, "echo awake").stdout == b"awake\n"
    assert ok(client.get(path))["status"] == "running"
    assert ok(client.get(f"/sessions/{session['id']}/remote"))["sshAvailable"] is True


def _token_of(platform: Platform, name: str) -> str:
    with httpx.Client(base_url=f"{platform.url}/api/v1", headers={"X-Sandyard-CSRF": "1"}) as browser:
        ok(browser.post("/login", json={"name": name, "password": PASSWORD}))
        return str(ok(browser.post("/tokens", json={"name": "laptop"}), 201)["value"])
