"""A client of the demo agent built on the official ACP package, whose schema validates the messages of both."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandyard.platform.domain.agents.profiles.demo import DEMO
from sandyard.platform.domain.agents.profiles.model import LaunchRequest
from tests.later import Later

if TYPE_CHECKING:
    import acp
    from acp import schema
else:
    acp, schema = Later("acp"), Later("acp.schema")

MAX_LINE = 50 << 20


class RecordingClient:
    """Answers as configured and records what it receives. `choose` returns the id of an option, or None to cancel."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.requests: list[str] = []
        self.choose: Callable[[str], str | None] = lambda title: "allow"
        self.replies: list[Any] = []
        self.updated = asyncio.Event()
        self.silent = False

    def on_connect(self, conn: Any) -> None: ...

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates.append(update)
        self.updated.set()

    async def request_permission(
        self, options: Any, session_id: str, tool_call: Any, **kwargs: Any
    ) -> schema.RequestPermissionResponse:
        self.requests.append(tool_call.title)
        self.updated.set()
        if self.silent:
            await asyncio.Event().wait()
        option = self.choose(tool_call.title)
        if option is None:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        assert option in {item.option_id for item in options}
        return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=option))

    async def create_elicitation(self, message: str, mode: Any, **kwargs: Any) -> Any:
        self.requests.append(message)
        assert mode.requested_schema.required == ["answer"]
        return self.replies.pop(0)

    @property
    def text(self) -> str:
        return "".join(self._chunks("agent_message_chunk"))

    @property
    def thoughts(self) -> str:
        return "".join(self._chunks("agent_thought_chunk"))

    def list_updates(self, kind: str) -> list[Any]:
        return [update for update in self.updates if update.session_update == kind]

    def _chunks(self, kind: str) -> list[str]:
        return [update.content.text for update in self.list_updates(kind)]

    async def until(self, predicate: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not predicate():
                self.updated.clear()
                await self.updated.wait()


class DemoConnection:
    """One connection with one open session."""

    def __init__(self, client: RecordingClient, agent: Any, process: Any, session: str) -> None:
        self.client = client
        self.agent = agent
        self.process = process
        self.session = session

    async def prompt(self, *lines: str) -> str:
        """Send a prompt and return the stop reason."""
        self.client.updates.clear()
        response = await self.agent.prompt(session_id=self.session, prompt=[acp.text_block("\n".join(lines))])
        return str(response.stop_reason)


def write_program(home: Path) -> list[str]:
    """Write the agent's file as in a sandbox and return its command line."""
    launch = DEMO.launch(LaunchRequest(home=str(home), folder="/"))
    for name, content in launch.files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    return [sys.executable, *launch.argv[1:]]


@contextlib.asynccontextmanager
async def connect_demo(
    home: Path, folder: Path, *, forms: bool = False, load: str | None = None
) -> AsyncIterator[DemoConnection]:
    client = RecordingClient()
    program = write_program(home)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    options = {"limit": MAX_LINE, "stderr": None}
    async with acp.spawn_agent_process(
        client,  # type: ignore[arg-type] # implements only the methods that the agent calls
        *program,
        env=env,
        cwd=folder,
        transport_kwargs=options,
        use_unstable_protocol=True,
    ) as (agent, process):
        capabilities = {"elicitation": {"form": {}}} if forms else {}
        initialized = await agent.initialize(1, schema.ClientCapabilities.model_validate(capabilities))
        assert initialized.agent_info is not None
        assert initialized.agent_info.title == "Demo agent (no model)"
        if load is None:
            session = (await agent.new_session(str(folder), mcp_servers=[])).session_id
        else:
            await agent.load_session(cwd=str(folder), session_id=load, mcp_servers=[])
            session = load
        yield DemoConnection(client, agent, process, session)
