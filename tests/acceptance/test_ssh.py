"""Test SSH access to sandboxes with the real OpenSSH client: commands, files, forwarded ports, access control, and closed connections."""

from __future__ import annotations

import contextlib
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
from tests.harness.engine import Engine
from tests.harness.platform import Platform, ok, running, sign_in, until

pytestmark = pytest.mark.timeout(300)
SANDYARD = str(Path(sys.executable).with_name("sandyard"))
LARGE = 4 << 20
PASSWORD = "a long enough password"


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine) as platform:
        yield platform


@dataclass
class UserMachine:
    """The machine of a user: its own home directory, and OpenSSH configured with one command."""

    platform: Platform
    home: Path
    token: str

    @property
    def variables(self) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "SANDYARD_", "XDG_"))
        }
        return inherited | {"HOME": str(self.home), "SANDYARD_URL": self.platform.url, "SANDYARD_TOKEN": self.token}

    def run(self, *command: str, stdin: bytes = b"", check: bool = True) -> subprocess.CompletedProcess[bytes]:
        command = (
            (command[0], "-F", str(self.home / ".ssh/config"), *command[1:])
            if command[0] in {"ssh", "scp", "sftp"}
            else command
        )
        result = subprocess.run(command, input=stdin, capture_output=True, env=self.variables, timeout=120, check=False)
        assert not check or result.returncode == 0, (command, result.returncode, result.stderr.decode())
        return result

    def start_ssh(self, *command: str) -> subprocess.Popen[bytes]:
        pipe, start = subprocess.PIPE, ("ssh", "-F", str(self.home / ".ssh/config"))
        return subprocess.Popen(start + command, stdin=pipe, stdout=pipe, stderr=pipe, env=self.variables)

    @contextlib.contextmanager
    def forwarding(self, host: str, *command: str) -> Iterator[None]:
        process = self.start_ssh("-N", "-o", "ExitOnForwardFailure=yes", *command, host)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)


@pytest.fixture(scope="module")
def machine(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> UserMachine:
    """OpenSSH reads the home directory from the user database, so the tests pass the configuration file explicitly."""
    created = UserMachine(platform, tmp_path_factory.mktemp("home"), platform.token)
    output = created.run(SANDYARD, "ssh-config", "--write").stdout.decode()
    assert "now includes" in output
    return created


@pytest.fixture(scope="module")
def session(platform: Platform) -> Iterator[dict[str, Any]]:
    created = ok(platform.client.post("/sessions", json={"envs": {"GREETING": 'he said "a\\b" # $HOME'}}), 201)
    yield created
    ok(platform.client.delete(f"/sessions/{created['id']}"), 204)


@pytest.fixture(scope="module")
def host(session: dict[str, Any]) -> str:
    return f"{session['id']}.sandyard"


def test_commands_run_with_input_output_and_exit_code(machine: UserMachine, session: dict[str, Any], host: str) -> None:
    body = secrets.token_bytes(1 << 20)
    command = 'echo "$GREETING"; id -un; pwd; echo "[$SSH_AUTH_SOCK]"; cat; echo oops >&2; exit 7'
    result = machine.run("ssh", "-A", host, command, stdin=body, check=False)
    printed = 'he said "a\\b" # $HOME\nuser\n/home/user\n[]\n'
    assert (result.stdout == printed.encode() + body, result.returncode) == (True, 7), result.stdout[:200]
    assert result.stderr == b"oops\n"
    shell = machine.run("ssh", "-tt", host, stdin=b"tty\nexit 5\n", check=False)
    assert (b"/dev/pts/" in shell.stdout, shell.returncode) == (True, 5)
    # the same without any SSH configuration, by session id and by sandbox id
    cli_result = machine.run(SANDYARD, "ssh", session["id"], "--", "printf", "%s|", "a b", "$HOME")
    assert cli_result.stdout == b"a b|$HOME|"
    by_sandbox = machine.run(
        SANDYARD, "ssh", session["sandboxId"], "--", "cat | tr a b; exit 3", stdin=b"aaa", check=False
    )
    assert (by_sandbox.stdout, by_sandbox.returncode) == (b"bbb", 3)


def test_the_environment_is_the_same_as_for_commands(
    machine: UserMachine, platform: Platform, session: dict[str, Any], host: str
) -> None:
    session_variables = "SHLVL PWD OLDPWD _ SSH_CLIENT SSH_CONNECTION MAIL".split()
    env_command = f"env {' '.join(f'-u {name}' for name in session_variables)} | sort"
    by_command = ok(platform.client.post(f"/sandboxes/{session['sandboxId']}/execute", json={"command": env_command}))
    assert machine.run("ssh", host, env_command).stdout.decode() == by_command["stdout"]


def test_files_are_copied_with_scp_rsync_and_sftp(machine: UserMachine, host: str, tmp_path: Path) -> None:
    body = secrets.token_bytes(LARGE)
    (tmp_path / "large").write_bytes(body)
    started_at = time.monotonic()
    machine.run("scp", "-q", str(tmp_path / "large"), f"{host}:large")
    uploaded_at = time.monotonic()
    machine.run("scp", "-q", f"{host}:large", str(tmp_path / "back"))
    print(f"{LARGE >> 20} MiB: {uploaded_at - started_at:.1f} s up, {time.monotonic() - uploaded_at:.1f} s down")
    assert (tmp_path / "back").read_bytes() == body
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/leaf").write_text("green")
    machine.run("rsync", "-a", "-e", f"ssh -F {machine.home}/.ssh/config", f"{tmp_path}/tree", f"{host}:")
    (tmp_path / "small").write_bytes(body[:300_000])
    batch = f"mkdir box\nput {tmp_path}/small box/copy\nrename box/copy box/moved\nget box/moved {tmp_path}/again\n"
    batch += f"get tree/deep/leaf {tmp_path}/leaf\nls -l box\n"
    listing = machine.run("sftp", "-q", "-b", "-", host, stdin=batch.encode()).stdout
    assert b"moved" in listing
    assert (tmp_path / "again").read_bytes() == body[:300_000]
    assert (tmp_path / "leaf").read_text() == "green"


def test_ports_are_forwarded(machine: UserMachine, host: str) -> None:
    """Forward to a server on loopback in the sandbox, as editors do: with -L and through SOCKS (-D)."""
    machine.run(
        "ssh", host, "echo hello > index.html; nohup python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 &"
    )
    local, socks = free_port(), free_port()
    with machine.forwarding(host, "-L", f"127.0.0.1:{local}:127.0.0.1:8123", "-D", f"127.0.0.1:{socks}"):

        def fetch() -> str | None:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{local}/", trust_env=False).text
            return None

        assert until(fetch) == "hello\n"
        with socket.create_connection(("127.0.0.1", socks), 30) as connection:
            connection.sendall(b"\x05\x01\x00")
            assert connection.recv(2) == b"\x05\x00"
            connection.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + struct.pack(">H", 8123))
            assert connection.recv(10)[1] == 0
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with connection.makefile("rb") as answer:
                assert answer.read().endswith(b"hello\n")


def test_other_users_and_wrong_keys_are_refused(
    machine: UserMachine, platform: Platform, session: dict[str, Any], host: str, tmp_path: Path
) -> None:
    client = platform.client
    other = ok(client.post("/users", json={"name": "other", "password": PASSWORD}), 201)
    token = _create_token(platform, "other")
    for invalid_token, message in ((token, "There is no"), ("sy_wrong", "token is invalid")):
        other_machine = UserMachine(platform, machine.home, invalid_token)
        result = other_machine.run("ssh", host, "true", check=False)
        assert result.returncode == 255
        assert message in result.stderr.decode()
    # a client with the connection but a different key
    known = machine.home / ".config/sandyard/ssh/known_hosts" / host
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    options = ("-F", "none", "-o", f"ProxyCommand={SANDYARD} ssh --stdio %n", "-o", f"IdentityFile={tmp_path}/key")
    command = ("ssh", *options, "-o", "IdentitiesOnly=yes", "-o", f"UserKnownHostsFile={known}", f"user@{host}", "true")
    result = subprocess.run(command, capture_output=True, env=machine.variables, timeout=60, check=False)
    assert result.returncode == 255
    assert "Permission denied (publickey)" in result.stderr.decode()
    keys = machine.run("ssh", "-G", host).stdout.decode()
    assert "identitiesonly yes" in keys
    assert "forwardagent no" in keys
    # a host with a different key than the platform announced
    assert known.read_text().startswith(f"{host} ssh-ed25519 ")
    (tmp_path / "known").write_text(f"{host} {' '.join((tmp_path / 'key.pub').read_text().split()[:2])}\n")
    result = machine.run("ssh", "-o", f"UserKnownHostsFile={tmp_path}/known", host, "true", check=False)
    assert result.returncode == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in result.stderr.decode()
    ok(client.delete(f"/users/{other['id']}"))


@pytest.mark.slow
def test_revoking_a_token_ends_the_connection(machine: UserMachine, platform: Platform, host: str) -> None:
    created = ok(platform.client.post("/tokens", json={"name": "short"}), 201)
    process = UserMachine(platform, machine.home, created["value"]).start_ssh(host, "echo ready; sleep 300")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    ok(platform.client.delete(f"/tokens/{created['id']}"))
    _, stderr = process.communicate(timeout=60)
    assert "You no longer have access to this sandbox" in stderr.decode()
    until(
        lambda: (
            b"sshd"
            not in machine.run(SANDYARD, "sandbox", "exec", host.removesuffix(".sandyard"), "--", "ps", "ax").stdout
        ),
        patience=150,  # a guest agent that gets no end notice detects it after 45 s
    )


def test_a_pause_ends_connections_and_connecting_resumes_the_sandbox(
    machine: UserMachine, platform: Platform, session: dict[str, Any], host: str
) -> None:
    client, path = platform.client, f"/sandboxes/{session['sandboxId']}"
    process = machine.start_ssh(host, "echo ready; sleep 300")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    ok(client.post(f"{path}/pause"))
    _, stderr = process.communicate(timeout=60)
    assert "The sandbox was paused" in stderr.decode()
    remote = ok(client.get(f"/sessions/{session['id']}/remote"))
    assert (remote["sshHost"], remote["sshAvailable"]) == (host, None)
    assert ok(client.get(path))["status"] == "paused"
    assert machine.run("ssh", host, "echo awake").stdout == b"awake\n"
    assert ok(client.get(path))["status"] == "running"
    assert ok(client.get(f"/sessions/{session['id']}/remote"))["sshAvailable"] is True


def _create_token(platform: Platform, name: str) -> str:
    with httpx.Client(base_url=f"{platform.url}/api/v1") as browser:
        sign_in(browser, name=name, password=PASSWORD)
        return str(ok(browser.post("/tokens", json={"name": "laptop"}), 201)["value"])
