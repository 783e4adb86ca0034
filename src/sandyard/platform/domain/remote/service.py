"""Connection details of a sandbox for users' own tools: its SSH host and folder, and code-server if it is installed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from urllib.parse import quote

from sandyard.kit import bounded_json
from sandyard.kit.errors import SandyardError
from sandyard.kit.text import make_storable
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Checkout, Sandbox
from sandyard.platform.domain.remote.connections import SshConnections
from sandyard.platform.domain.sandboxes.e2b.guest_sources import read_script
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import Status
from sandyard.platform.domain.sessions.service import Sessions
from sandyard.platform.domain.users.model import Principal

HOME = "/home/user"
HOST_SUFFIX = ".sandyard"
"""Suffix of the host names of sessions and sandboxes in the SSH configuration that `sandyard ssh-config` writes."""
_EDITOR = read_script("editor.py")
_EDITOR_TIMEOUT_S, _FIND_TIMEOUT_S = 60.0, 15.0
_MAX_REMEMBERED = 1000
"""Maximum number of sandboxes whose programs are remembered."""
_MAX_OUTPUT = 64 << 10
_FIND_PROGRAMS = (
    'PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"; for name in sshd code-server; do command -v "$name"; done'
)


class NoEditorError(SandyardError):
    """The sandbox has no code-server. Install it in the sandbox, in the project's setup or in the template, so that it is on the PATH.

    See docs/editors.md. Desktop VS Code does not need it: it connects over SSH.
    """

    code, status = "no_editor", 409


class EditorFailedError(SandyardError):
    """code-server did not start."""

    code, status = "editor_failed", 502


@dataclass(frozen=True, slots=True)
class RemoteAccess:
    """Connection details of a session.

    `ssh_available` and `editor_available` are None if unknown: a paused sandbox is not resumed to check, but the result of a
    check before the pause is still valid.
    """

    sandbox_id: str
    ssh_host: str
    folder: str
    ssh_available: bool | None
    editor_available: bool | None

    @property
    def vscode_url(self) -> str:
        return f"vscode://vscode-remote/ssh-remote+{self.ssh_host}{quote(self.folder)}"

    @property
    def code_command(self) -> str:
        return f"code --remote ssh-remote+{self.ssh_host} {shlex.quote(self.folder)}"

    @property
    def ssh_command(self) -> str:
        return f"ssh {self.ssh_host}"


@dataclass(frozen=True, slots=True)
class Editor:
    """The port of code-server in the sandbox, and the path and query that open the work."""

    port: int
    path: str


class Remotes:
    """Remote access to sandboxes: connection details, SSH and code-server."""

    def __init__(self, database: Database, lifecycle: Lifecycle, sessions: Sessions) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._sessions = sessions
        self.ssh = SshConnections(lifecycle)
        self._programs: dict[str, tuple[bool, bool]] = {}
        """Whether sshd and code-server are installed, by the engine's sandbox id. Used while a sandbox is paused."""

    async def get_for_session(self, caller: Principal, session_id: str) -> RemoteAccess:
        """Return the session's connection details. Raises NotFoundError if it has no sandbox.

        Does not resume the sandbox and does not count as activity.
        """
        row = await self._sessions.get_sandbox(caller, session_id)
        ssh, editor = await self._find_programs(row)
        return RemoteAccess(row.id, f"{session_id}{HOST_SUFFIX}", await self._get_folder(row), ssh, editor)

    async def open_editor(self, caller: Principal, sandbox_id: str) -> Editor:
        """Start code-server in the sandbox, resuming it if needed. Idempotent. Raises NoEditorError and EditorFailedError."""
        row = await self._lifecycle.repository.get_for(caller, sandbox_id)
        argv = ("python3", "-I", "-S", "-c", _EDITOR)
        result = await self._lifecycle.call(
            row,
            lambda engine_id: self._lifecycle.engine.programs.run(
                engine_id, argv, timeout_s=_EDITOR_TIMEOUT_S, limit=_MAX_OUTPUT, idempotent=True
            ),
        )
        try:
            output = bounded_json.parse(result.stdout, largest=_MAX_OUTPUT, values=100)
            port, error = output.get("port"), output.get("error")
        except (ValueError, AttributeError):
            port, error = None, result.stderr[-300:]
        if isinstance(port, int) and 0 < port < 65536:
            return Editor(port, f"/?folder={quote(await self._get_folder(row))}")
        if error == "absent":
            raise NoEditorError
        raise EditorFailedError(f"code-server did not start: {make_storable(str(error))[:600]}")

    async def _find_programs(self, row: Sandbox) -> tuple[bool | None, bool | None]:
        """Return whether sshd and code-server are installed."""
        if row.engine_id is None:
            return None, None
        if row.status != Status.RUNNING:
            return self._programs.get(row.engine_id, (None, None))
        try:
            result = await self._lifecycle.engine.programs.run(
                row.engine_id, ("sh", "-c", _FIND_PROGRAMS), timeout_s=_FIND_TIMEOUT_S, limit=4096, idempotent=True
            )
        except SandyardError:
            return None, None
        found = {line.rpartition(b"/")[2] for line in result.stdout.splitlines()}
        if len(self._programs) >= _MAX_REMEMBERED:
            del self._programs[next(iter(self._programs))]
        self._programs[row.engine_id] = programs = (b"sshd" in found, b"code-server" in found)
        return programs

    async def _get_folder(self, row: Sandbox) -> str:
        async with self._database.reading() as session:
            checkout = await session.get(Checkout, row.id)
        return HOME if checkout is None else checkout.folder
