"""Start dockerd when a client connects to /run/docker.sock, and again after it has ended.

gVisor's kernel differs from Linux in a few ways that dockerd does not expect, so this program prepares for it:

- There is no MASQUERADE and no nftables. Packets of containers get the sandbox's own address by SNAT, which is the same
  in every sandbox (see `drivers.gvisor.link`). The resolver of container networks uses `iptables`, so dockerd finds
  the legacy program under this name.
- A bridge also hands the packets between its containers to the sandbox's own network, which would forward them a second
  time. Only packets from and to the outside are forwarded.
- An interface does not say that it is a bridge, so dockerd cannot continue to use those of its previous run.
- Containers are entered without their process id namespace (`oci_runtime`).

The image's /etc/docker/daemon.json applies, except for these settings.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

SOCKET = "/run/docker.sock"
LOG = "/var/log/dockerd.log"
_FOLDER = "/dev/.containers"  # files of this boot: dockerd must not find those of an earlier one
_SETTINGS = "/etc/docker/daemon.json"
_CONFIG = f"{_FOLDER}/daemon.json"
_PROGRAMS = f"{_FOLDER}/bin"
_UPLINK = "eth0"
_FORWARDING = "/proc/sys/net/ipv4/ip_forward"
_LISTEN_FD = 3
_RETRY_S = 1.0
_BACKLOG = 128
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_OPEN_FILES = {"Name": "nofile", "Soft": 1024, "Hard": 65536}
"""The limit of open files in a container. Some programs, such as apt's, close every possible descriptor, which takes seconds
for a million."""
_BRIDGE = re.compile(r"^\d+: (docker0|br-[0-9a-f]{12})\b", re.MULTILINE)


def main() -> None:
    """Run `service ADDRESS RUNTIME OWNER`: the sandbox's address, the path of `oci_runtime`, and the user id that owns
    the socket."""
    address, runtime, owner = sys.argv[1], sys.argv[2], int(sys.argv[3])
    daemon = shutil.which("dockerd", path=_PATH)
    if daemon is None:
        return
    os.makedirs(_PROGRAMS, exist_ok=True)
    listener = _listen(owner)
    ready = select.poll()
    ready.register(listener, select.POLLIN)
    prepared = False
    while True:
        ready.poll()
        with _open_log() as log:
            try:
                if not prepared:
                    _prepare(address, log.fileno())
                    prepared = True
                _remove_bridges()
                _write_config(runtime)
                status = _run_daemon([daemon, f"--config-file={_CONFIG}"], listener, log.fileno())
                message = f"dockerd ended with status {status}"
            except (OSError, TypeError, ValueError, subprocess.CalledProcessError) as error:
                message = f"Could not start dockerd: {error}"
            with contextlib.suppress(OSError):  # the disk may be full
                log.write(f"{message}\n".encode())
        _refuse_clients(listener)
        time.sleep(_RETRY_S)


def _open_log() -> io.FileIO:
    """Open the log, or /dev/null if that fails: a full disk must not end this program, which nobody would start again."""
    try:
        return open(LOG, "ab", buffering=0)
    except OSError:
        return open(os.devnull, "ab", buffering=0)


def _listen(owner: int) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET)
    os.chown(SOCKET, owner, _find_group("docker"))
    os.chmod(SOCKET, 0o660)
    listener.listen(_BACKLOG)
    return listener


def _find_group(name: str) -> int:
    """Return the id of a group, or root's."""
    with contextlib.suppress(OSError), open("/etc/group", encoding="utf-8", errors="replace") as file:
        for row in (line.split(":") for line in file):
            if row[0] == name and len(row) > 2 and row[2].isdigit():
                return int(row[2])
    return 0


def _prepare(address: str, log: int) -> None:
    """Set up the network once: rules and settings stay as long as the kernel of the sandbox."""
    for name in ("iptables", "ip6tables"):
        legacy = shutil.which(f"{name}-legacy", path=_PATH)
        if legacy is not None and not os.path.lexists(f"{_PROGRAMS}/{name}"):
            os.symlink(legacy, f"{_PROGRAMS}/{name}")
    with open(_FORWARDING, "w", encoding="ascii") as file:
        file.write("1")
    for rule in make_rules(address):
        subprocess.run([f"{_PROGRAMS}/iptables", *rule], check=True, stdout=log, stderr=log)


def make_rules(address: str) -> Iterable[tuple[str, ...]]:
    """Return the arguments of iptables for a sandbox with this address."""
    for source in ("127.0.0.0/8", address):
        yield ("-t", "nat", "-A", "POSTROUTING", "-s", source, "-j", "ACCEPT")
    for protocol in ("tcp", "udp"):
        yield (
            *("-t", "nat", "-A", "POSTROUTING", "-o", _UPLINK, "-p", protocol, "-j", "SNAT"),
            *("--to-source", address),
        )
    yield ("-A", "FORWARD", "-i", _UPLINK, "-j", "ACCEPT")
    yield ("-A", "FORWARD", "-o", _UPLINK, "-j", "ACCEPT")
    yield ("-A", "FORWARD", "-j", "DROP")


def _remove_bridges() -> None:
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=False).stdout
    for name in find_bridges(links):
        subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)


def find_bridges(links: str) -> list[str]:
    """Return the names of Docker's bridges in the output of `ip link`."""
    return _BRIDGE.findall(links)


def _write_config(runtime: str) -> None:
    text = "{}"
    with contextlib.suppress(FileNotFoundError), open(_SETTINGS, encoding="utf-8") as file:
        text = file.read()
    with open(_CONFIG, "w", encoding="utf-8") as file:
        json.dump(make_config(json.loads(text), runtime), file)


def make_config(settings: dict[str, Any], runtime: str) -> dict[str, Any]:
    """Return the settings of dockerd, from those of the image. Raises TypeError if these are not an object."""
    if not isinstance(settings, dict):
        raise TypeError(f"{_SETTINGS} does not contain a JSON object")
    required = {
        "hosts": ["fd://"],
        "exec-root": f"{_FOLDER}/exec",
        "pidfile": f"{_FOLDER}/dockerd.pid",
        "storage-driver": "overlay2",
        "iptables": False,
        "ip6tables": False,
        "runtimes": {"sandyard": {"path": runtime}},
        "default-runtime": "sandyard",
    }
    defaults = {"default-ulimits": {"nofile": _MAX_OPEN_FILES}}
    ignored = {"data-root", "userland-proxy-path", "live-restore"}
    accepted = {name: value for name, value in settings.items() if name not in ignored}
    return {**defaults, **accepted, **required}


def _run_daemon(command: list[str], listener: socket.socket, log: int) -> int:
    """Run dockerd, with the socket by systemd's protocol, and return its exit status."""
    environment = {**os.environ, "PATH": f"{_PROGRAMS}:{_PATH}", "LISTEN_FDS": "1", "HOME": "/root"}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTHON")}
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.dup2(listener.fileno(), _LISTEN_FD)
            os.set_inheritable(_LISTEN_FD, True)
            os.execve(command[0], command, {**environment, "LISTEN_PID": str(os.getpid())})  # noqa: S606 - dockerd
        finally:
            os._exit(127)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _refuse_clients(listener: socket.socket) -> None:
    """Close the connections of clients that still wait: they must learn that dockerd has ended."""
    listener.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
    listener.setblocking(True)


if __name__ == "__main__":
    main()
