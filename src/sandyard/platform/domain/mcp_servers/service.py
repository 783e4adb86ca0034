"""MCP servers of projects, managed by those who may change the project. Header values are write-only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

import httpx
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.destinations import PrivateAddressError
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import McpServer, Project, Session
from sandyard.platform.domain.mcp_servers import model
from sandyard.platform.domain.mcp_servers.clients import McpClients
from sandyard.platform.domain.mcp_servers.model import (
    MAX_HEADERS,
    MAX_SERVERS,
    McpServerInfo,
    McpTestFailedError,
    McpTestResult,
    ServerType,
)
from sandyard.platform.domain.mcp_servers.probe import check_server
from sandyard.platform.domain.mcp_servers.records import list_servers
from sandyard.platform.domain.projects.service import Projects, owner_has_access
from sandyard.platform.domain.users.model import Principal

ID_PREFIX = "mcp_"
Headers = Mapping[str, Secret | None]
"""By name. None keeps the stored value."""


@dataclass(frozen=True, slots=True)
class McpServerDraft:
    """The fields of a server to create or change. None means not set or unchanged."""

    name: str | None = None
    type: ServerType | None = None
    command: str | None = None
    args: Sequence[str] | None = None
    env: Mapping[str, str] | None = None
    url: str | None = None
    headers: Headers | None = field(default=None, repr=False)


class McpServers:
    """Operations on MCP servers. Those who see a project see its servers; those who may change it may change them."""

    def __init__(
        self,
        database: Database,
        projects: Projects,
        vault: Vault,
        clock: Clock,
        clients: McpClients,
    ) -> None:
        self._database = database
        self._projects = projects
        self._vault = vault
        self._clock = clock
        self._clients = clients

    async def close(self) -> None:
        await self._clients.close()

    async def list(self, caller: Principal, project_id: str) -> Sequence[McpServerInfo]:
        """List the project's servers, oldest first."""
        await self._projects.get(caller, project_id)
        async with self._database.reading() as session:
            return [model.make_info(row) for row in await list_servers(session, project_id)]

    async def get(self, caller: Principal, project_id: str, server_id: str) -> McpServerInfo:
        await self._projects.get(caller, project_id)
        return model.make_info(await self._load_copy(project_id, server_id))

    async def create(
        self, caller: Principal, project_id: str, draft: McpServerDraft, *, test: bool = False
    ) -> McpServerInfo:
        """Create a server. Raises ConflictError if the name is taken or there are too many.

        With `test`, raises McpTestFailedError if a URL does not work. Commands are not tested.
        """
        owner = (await self._projects.get_changeable(caller, project_id)).owner_id
        now = get_time(self._clock)
        if draft.name is None:
            raise InvalidInputError("An MCP server needs a name.")
        row = McpServer(
            id=make_ordered_id(ID_PREFIX),
            project_id=project_id,
            name="",
            type=_get_type(draft),
            args=[],
            env={},
            hints={},
            named_by_admin=False,
            created_at=now,
            updated_at=now,
        )
        await self._fill(caller, row, draft)
        if row.command is None and row.url is None:
            raise InvalidInputError("An MCP server needs a command or a url.")
        if test:
            async with self._database.reading() as session:
                await _require_capacity(session, row)  # fail before sending a request to the server
            await self._require_working(row)
        async with self._database.transaction() as tx:
            await _lock_project(tx, project_id)
            await _require_capacity(tx.session, row)
            tx.add(row)
            _emit(tx, "mcp_server.created", row, owner)
        return model.make_info(row)

    async def update(
        self, caller: Principal, project_id: str, server_id: str, draft: McpServerDraft, *, test: bool = False
    ) -> McpServerInfo:
        """Change the given fields. `headers` replaces all headers. The type cannot change.

        Raises ConflictError if a stored header value would be sent to another server, so that nobody can read it by changing the URL to
        their own server.
        """
        owner = (await self._projects.get_changeable(caller, project_id)).owner_id
        edited = await self._load_copy(project_id, server_id)
        if draft.type is not None and draft.type != edited.type:
            raise InvalidInputError("The type of an MCP server cannot be changed. Add another server instead.")
        await self._fill(caller, edited, draft)
        if test:
            await self._require_working(edited)
        async with self._database.transaction() as tx:
            await _lock_project(tx, project_id)
            row = await tx.session.get(McpServer, server_id, with_for_update=True)
            if row is None or row.project_id != project_id:
                raise _make_not_found(server_id)
            if row.updated_at != edited.updated_at:
                raise ConflictError("This MCP server was changed by someone else. Reload and try again.")
            await _require_unused_name(tx.session, edited)
            for name in ("name", "command", "args", "env", "url", "headers", "hints", "named_by_admin"):
                setattr(row, name, getattr(edited, name))
            row.updated_at = get_time(self._clock)
            _emit(tx, "mcp_server.updated", row, owner)
        return model.make_info(row)

    async def delete(self, caller: Principal, project_id: str, server_id: str) -> None:
        """Delete a server. Running agents that use it get an error."""
        owner = (await self._projects.get_changeable(caller, project_id)).owner_id
        async with self._database.transaction() as tx:
            row = await tx.session.get(McpServer, server_id)
            if row is None or row.project_id != project_id:
                raise _make_not_found(server_id)
            await tx.session.delete(row)
            _emit(tx, "mcp_server.deleted", row, owner)

    async def test(self, caller: Principal, project_id: str, server_id: str) -> McpTestResult:
        """Connect to the server with its headers and list its tools. Requires permission to change the project."""
        await self._projects.get_changeable(caller, project_id)
        row = await self._load_copy(project_id, server_id)
        if row.type != ServerType.HTTP:
            raise ConflictError("Only servers with a URL can be tested. Commands run only in an agent's sandbox.")
        return await self._check_server(row)

    # internal ----------------------------------------------------------------------------------------------------------

    async def find(self, server_id: str, session_id: str) -> McpServer | None:
        """Return a server that agents of this session may use.

        None if it belongs to another project or the session's owner has left the project.
        """
        async with self._database.reading() as reading:
            session = await reading.get(Session, session_id)
            row = await reading.get(McpServer, server_id)
            if session is None or row is None or session.project_id != row.project_id:
                return None
            return row if await owner_has_access(reading, session) else None

    def get_client(self, row: McpServer) -> httpx.AsyncClient:
        return self._clients.get_client(row)

    async def reveal(self, row: McpServer) -> dict[str, Secret]:
        """Return its headers. Raises VaultError if they cannot be decrypted."""
        if row.headers is None:
            return {}
        opened = await asyncio.to_thread(self._vault.open, row.headers, *_get_seal_context(row.id))
        values: dict[str, str] = json.loads(opened.reveal())
        return {name: Secret(value) for name, value in values.items()}

    async def _load_copy(self, project_id: str, server_id: str) -> McpServer:
        """Return a detached copy. Changes to it are not stored."""
        async with self._database.reading() as session:
            row = await session.get(McpServer, server_id)
            if row is None or row.project_id != project_id:
                raise _make_not_found(server_id)
            session.expunge(row)
        return row

    async def _fill(self, caller: Principal, row: McpServer, draft: McpServerDraft) -> None:
        has_command_fields = any(value is not None for value in (draft.command, draft.args, draft.env))
        has_url_fields = draft.url is not None or draft.headers is not None
        if (has_command_fields and row.type != ServerType.STDIO) or (has_url_fields and row.type != ServerType.HTTP):
            raise InvalidInputError("An MCP server has either a command with args and env, or a url with headers.")
        if draft.name is not None:
            row.name = model.check_name(draft.name)
        if draft.command is not None:
            row.command = model.check_command(draft.command)
        if draft.args is not None:
            row.args = model.check_args(draft.args)
        if draft.env is not None:
            row.env = model.check_env(draft.env)
        before = row.url
        if draft.url is not None:
            parts = model.check_url(draft.url)
            row.url = parts._replace(netloc=parts.netloc.lower()).geturl()
            if before != row.url or caller.is_admin:  # an administrator who sets the same one again approves it
                await self._require_permitted_url(caller, parts)
                row.named_by_admin = caller.is_admin
        moved = before is not None and _get_server(before) != _get_server(row.url or before)
        if draft.headers is not None:
            await self._seal(row, draft.headers, moved_from=before if moved else None)
        elif before is not None and moved and row.headers is not None:
            raise _make_moved_error(before)

    async def _require_permitted_url(self, caller: Principal, url: SplitResult) -> None:
        """Raise ForbiddenError for a URL that only an administrator may set, because the platform connects to it from its own network."""
        if caller.is_admin:
            return
        if url.scheme != "https":
            raise ForbiddenError("Only an administrator may use an http:// URL. Use https://.")
        host = (url.hostname or "")[:200]
        try:
            await self._clients.check(url)
        except PrivateAddressError:
            raise PrivateAddressError(
                f"{host} is in a private network. Only an administrator can use this URL, unless the host is in SANDYARD_PRIVATE_HOSTS."
            ) from None
        except (OSError, TimeoutError):
            raise InvalidInputError(f"The host {host} of this URL was not found.") from None

    async def _seal(self, row: McpServer, headers: Headers, *, moved_from: str | None) -> None:
        if len(headers) > MAX_HEADERS:
            raise InvalidInputError(f"Use at most {MAX_HEADERS} headers.")
        if len({name.lower() for name in headers}) != len(headers):
            raise InvalidInputError("Duplicate header.")
        known = {name.lower(): value for name, value in (await self.reveal(row)).items()}
        values = {}
        for name, given in headers.items():
            value = given if given is not None else known.get(name.lower())
            if value is None:
                raise InvalidInputError(f"The header {name[:60]} has no value.")
            if given is None and moved_from is not None:
                raise _make_moved_error(moved_from)
            model.check_header(name, value)
            values[name] = value
        row.hints = {name: model.make_hint(value) for name, value in values.items()}
        row.headers = None
        if values:
            document = json.dumps({name: value.reveal() for name, value in values.items()})
            row.headers = await asyncio.to_thread(self._vault.seal, Secret(document), *_get_seal_context(row.id))

    async def _require_working(self, row: McpServer) -> None:
        if row.type == ServerType.HTTP:
            result = await self._check_server(row)
            if not result.ok:
                raise McpTestFailedError(result.detail)

    async def _check_server(self, row: McpServer) -> McpTestResult:
        assert row.url is not None
        return await check_server(self.get_client(row), row.name, row.url, await self.reveal(row))


def _get_type(draft: McpServerDraft) -> ServerType:
    if draft.type is not None:
        return draft.type
    return ServerType.HTTP if draft.url is not None else ServerType.STDIO


def _get_server(url: str) -> str:
    """Return scheme, host and port. Header values are only sent to the server they were entered for."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def _make_moved_error(url: str) -> ConflictError:
    return ConflictError(f"The header values were entered for {_get_server(url)}. Enter them again for the new URL.")


async def _lock_project(tx: Transaction, project_id: str) -> None:
    """Lock the project against concurrent changes of its servers, because no index enforces the limit or case-insensitive names."""
    if await tx.session.get(Project, project_id, with_for_update={"key_share": True}) is None:
        raise NotFoundError(f"There is no project {project_id[:60]}.")


async def _require_capacity(session: AsyncSession, row: McpServer) -> None:
    of_project = McpServer.project_id == row.project_id
    count = await session.scalar(select(func.count()).select_from(McpServer).where(of_project))
    if (count or 0) >= MAX_SERVERS:
        raise ConflictError(f"A project can have at most {MAX_SERVERS} MCP servers.")
    await _require_unused_name(session, row)


async def _require_unused_name(session: AsyncSession, row: McpServer) -> None:
    same = select(McpServer.id).where(
        McpServer.project_id == row.project_id,
        McpServer.id != row.id,
        func.lower(McpServer.name) == row.name.lower(),
    )
    if await session.scalar(same.limit(1)) is not None:
        raise ConflictError(f"The project already has an MCP server {row.name!r}.")


def _emit(tx: Transaction, kind: str, row: McpServer, owner_id: str) -> None:
    tx.emit(kind, owner_id=owner_id, project_id=row.project_id, serverId=row.id, name=row.name, type=row.type)


def _make_not_found(server_id: str) -> NotFoundError:
    return NotFoundError(f"The project has no MCP server {server_id[:60]!r}.")


def _get_seal_context(server_id: str) -> tuple[str, ...]:
    """Return the context a sealed value is bound to. It cannot be opened in another row."""
    return "mcp server", server_id
