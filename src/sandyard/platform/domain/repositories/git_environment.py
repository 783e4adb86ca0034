"""Environment of git on the platform's machine: no configuration of the user or system, and a credential that nobody else sees.

Configuration, token and SSH key are in memory files that only this process and the git it starts can open. None of them
is ever in a command line, an environment variable, a URL or a file on disk.
"""

from __future__ import annotations

import base64
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sandyard.kit.python import make_bare_python_command
from sandyard.platform.domain.repositories import local_client
from sandyard.platform.domain.repositories.error_translation import KEY_UNREADABLE
from sandyard.platform.domain.repositories.errors import RemoteRefusedError, RepositoryInvalidError
from sandyard.platform.domain.repositories.model import Credential
from sandyard.platform.domain.repositories.remote import Remote

HARMLESS_DEFECTS = ("zeroPaddedFilemode", "missingSpaceBeforeDate", "badTimezone")
"""Defects of old but honest histories that are harmless to readers. Forges accept them too."""

_INHERITED_VARIABLES = ("PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO")
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")

_CONFIG = """\
[core]
    askPass =
    attributesFile = /dev/null
    excludesFile = /dev/null
    fsmonitor = false
    packedRefsTimeout = 10000
    filesRefLockTimeout = 10000
    pager = cat
    protectHFS = true
    protectNTFS = true
    fsync = committed,reference
[credential]
    helper =
[diff]
    noprefix = false
    mnemonicPrefix = false
[fetch]
    fsckObjects = true
    unpackLimit = 1
    recurseSubmodules = false
[transfer]
    fsckObjects = true
[gc]
    auto = 0
[maintenance]
    auto = false
[http]
    followRedirects = initial
    lowSpeedLimit = 1
    lowSpeedTime = 120
[init]
    defaultBranch = main
[protocol]
    version = 2
[protocol "ext"]
    allow = never
[push]
    followTags = false
    recurseSubmodules = no
[safe]
    directory = *
[submodule]
    recurse = false
""" + "".join(f'[fetch "fsck"]\n    {name} = ignore\n' for name in HARMLESS_DEFECTS)

_LOCAL_REMOTE_CONFIG = "[pack]\n    window = 0\n"
"""Used by both ends: searching for better deltas takes longer than anything else, and data that stays on the machine need not be smaller."""


@dataclass(frozen=True, slots=True)
class GitEnvironment:
    """Environment and file descriptors for starting git. Valid until the context ends."""

    environment: dict[str, str]
    descriptors: tuple[int, ...]


@contextmanager
def prepare_environment(
    folder: Path,
    credential: Credential | None,
    remote: Remote | None,
    *,
    addresses: Sequence[str] | None = None,
    local: str | None = None,
) -> Iterator[GitEnvironment]:
    """Prepare the environment of a git process.

    `folder` is the platform's git folder, which replaces the home folder. Without a `remote`, git can reach none.
    `addresses` are those of its host that git may connect to, without following redirects to others; empty: connect
    through a proxy; None: any. `local` is the name of the socket that serves repositories of this machine which
    the platform's user cannot read.

    Raises RepositoryInvalidError if the credential would be sent over a connection that others can read.
    """
    descriptors: list[int] = []
    try:
        config = _CONFIG
        if remote is not None and remote.kind == "http" and credential is not None and credential.token:
            config += _make_credential_helper_config(credential, remote, descriptors)
        is_served = (
            local is not None and remote is not None and remote.kind == "local" and _is_outside_platform(folder, remote)
        )
        if is_served and remote is not None:
            config += _make_local_url_config(remote)
        if remote is not None and remote.kind == "local":
            config += _LOCAL_REMOTE_CONFIG
        if remote is not None and remote.kind == "http" and addresses is not None:
            config += _make_pinned_config(remote, addresses)
        settings = create_memory_file("git-config", config.encode())
        descriptors.append(settings)
        environment = {
            name: os.environ[name] for name in (*_INHERITED_VARIABLES, *_PROXY_VARIABLES) if name in os.environ
        } | {
            "LC_ALL": "C",
            "HOME": str(folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": f"/dev/fd/{settings}",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_ALLOW_PROTOCOL": "ssh" if is_served else _get_allowed_protocols(remote),
            "GIT_SSH_VARIANT": "ssh",
            "GIT_SSH_COMMAND": "false",
        }
        if remote is not None and remote.kind == "ssh":
            environment["GIT_SSH_COMMAND"] = _make_ssh_command(
                folder, credential, descriptors, _make_pinned_ssh_options(remote, addresses)
            )
        if is_served and local is not None:
            environment["GIT_SSH_COMMAND"] = shlex.join(make_bare_python_command(local_client.__file__, local))
        yield GitEnvironment(environment, tuple(descriptors))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def create_memory_file(name: str, content: bytes) -> int:
    """Create a file in memory only, open for reading from its start and accessible only to its owner."""
    descriptor = os.memfd_create(name)
    try:
        os.fchmod(descriptor, 0o600)
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _get_allowed_protocols(remote: Remote | None) -> str:
    if remote is None:
        return ""
    return "http:https" if remote.scheme == "http" else remote.scheme


def _is_outside_platform(folder: Path, remote: Remote) -> bool:
    """Return whether the repository is not one of the platform's own, such as the samples, which are next to its git folder."""
    return not Path(remote.path).is_relative_to(folder.parent)


def _make_local_url_config(remote: Remote) -> str:
    """Make git access a repository of this machine as over SSH, with `local_client.py` in place of ssh."""
    path = remote.url.replace("\\", "\\\\").replace('"', '\\"')
    return f'[url "ssh://sandyard{quote(remote.url)}"]\n    insteadOf = "{path}"\n'


def _make_credential_helper_config(credential: Credential, remote: Remote, descriptors: list[int]) -> str:
    """Configure a credential helper for this remote's origin only.

    `http.extraHeader` would be simpler, but git keeps sending it after a redirect to another host. A helper is asked
    again with the name of the new host.
    """
    if not remote.is_safe_from_interception:
        raise RepositoryInvalidError(
            "This URL starts with http://, so the project's token could be intercepted. Use https://, or remove the credential."
        )
    assert credential.token is not None
    token = credential.token.reveal()
    if any(character in token + credential.username for character in "\n\r\0"):
        raise RemoteRefusedError("The project's token contains a line break. Enter the token again.")
    response = create_memory_file("git-credential", f"username={credential.username}\npassword={token}\n".encode())
    descriptors.append(response)
    script = f'!f() {{ test \\"$1\\" != get || cat /dev/fd/{response}; }}; f'
    return f'[credential "{remote.origin}"]\n    helper = "{script}"\n'


def _make_pinned_config(remote: Remote, addresses: Sequence[str]) -> str:
    """Configure git to reach only these addresses. Redirects are off, because they could lead anywhere else."""
    config = "[http]\n    followRedirects = false\n"
    if not addresses or remote.host in addresses:
        return config  # a proxy connects, or the URL contains the address itself
    listed = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
    return f'{config}    curloptResolve = "{remote.host}:{remote.port}:{listed}"\n'


def _make_pinned_ssh_options(remote: Remote, addresses: Sequence[str] | None) -> dict[str, str]:
    """Make ssh connect to the address and look up the host key by the host's name."""
    if not addresses or remote.host in addresses:
        return {}
    alias = str(remote.host) if remote.port == 22 else f"[{remote.host}]:{remote.port}"
    return {"HostName": addresses[0], "HostKeyAlias": alias, "CheckHostIP": "no"}


def _make_ssh_command(
    folder: Path, credential: Credential | None, descriptors: list[int], pinned: Mapping[str, str]
) -> str:
    program = shutil.which("ssh")
    if program is None:
        raise RepositoryInvalidError(
            "`ssh` is not installed on the platform's machine. Install it, or use an https:// URL."
        )
    key = "none"  # not the keys of the user that runs the platform
    if credential is not None and credential.ssh_key:
        text = credential.ssh_key.reveal().replace("\r\n", "\n").strip() + "\n"
        if _needs_passphrase(text):
            raise RemoteRefusedError(KEY_UNREADABLE)  # ssh would try, and report only that access was denied
        descriptor = create_memory_file("ssh-key", text.encode())
        descriptors.append(descriptor)
        # ssh closes inherited descriptors, so /dev/fd does not work; the key exists while this process holds it open
        key = f"/proc/{os.getpid()}/fd/{descriptor}"
    known_hosts = str(folder / "known_hosts").replace('"', "")
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "accept-new",
        "UserKnownHostsFile": f'"{known_hosts}"',
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "IdentityFile": key,
        "PreferredAuthentications": "publickey",
        "ForwardAgent": "no",
        "ClearAllForwardings": "yes",
        "ControlPath": "none",
        "ConnectTimeout": "30",
        "ServerAliveInterval": "30",
        **pinned,
    }
    command = [
        program,
        "-F",
        "/dev/null",
        *(part for name, value in options.items() for part in ("-o", f"{name}={value}")),
    ]
    return shlex.join(command)


def _needs_passphrase(key: str) -> bool:
    """Return whether a private key needs a passphrase. PEM states it in its header, the OpenSSH format by the name of its cipher."""
    if "ENCRYPTED" in key:
        return True
    body = "".join(line for line in key.splitlines() if not line.startswith("-----"))
    try:
        content = base64.b64decode(body, validate=True)
    except ValueError:
        return False
    magic = b"openssh-key-v1\0"
    return content.startswith(magic) and not content.startswith(magic + b"\0\0\0\4none")
