"""A client of the demo agent made of the official package: what both of them say is checked by its schema."""

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

LONGEST = 50 << 20


class Person:
    """Answers as it was told, and remembers what it has heard. `choose`: the id of an option, None for nothing."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.asked: list[str] = []
        self.choose: Callable[[str], str | None] = lambda title: "allow"
        self.replies: list[Any] = []
        self.heard = asyncio.Event()
        self.silent = False

    def on_connect(self, conn: Any) -> None: ...

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates.append(update)
        self.heard.set()

    async def request_permission(
        self, options: Any, session_id: str, tool_call: Any, **kwargs: Any
    ) -> schema.RequestPermissionResponse:
        self.asked.append(tool_call.title)
        self.heard.set()
        if self.silent:
            await asyncio.Event().wait()
        option = self.choose(tool_call.title)
        if option is None:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        assert option in {one.option_id for one in options}
        return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=option))

    async def create_elicitation(self, message: str, mode: Any, **kwargs: Any) -> Any:
        self.asked.append(message)
        assert mode.requested_schema.required == ["answer"]
        return self.replies.pop(0)

    @property
    def text(self) -> str:
        return "".join(self._chunks("agent_message_chunk"))

    @property
    def thoughts(self) -> str:
        return "".join(self._chunks("agent_thought_chunk"))

    def of(self, kind: str) -> list[Any]:
        return [update for update in self.updates if update.session_update == kind]

    def _chunks(self, kind: str) -> list[str]:
        return [update.content.text for update in self.of(kind)]

    async def until(self, predicate: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not predicate():
                self.heard.clear()
                await self.heard.wait()


class Talk:
    """One connection with one session open."""

    def __init__(self, person: Person, agent: Any, process: Any, session: str) -> None:
        self.person = person
        self.agent = agent
        self.process = process
        self.session = session

    async def say(self, *lines: str) -> str:
        """The stop reason."""
        self.person.updates.clear()
        answer = await self.agent.prompt(session_id=self.session, prompt=[acp.text_block("\n".join(lines))])
        return str(answer.stop_reason)


def put_program(home: Path) -> list[str]:
    """Its command line, with its file written as a sandbox would have it."""
    launch = DEMO.launch(LaunchRequest(home=str(home), folder="/"))
    for name, content in launch.files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    return [sys.executable, *launch.argv[1:]]


@contextlib.asynccontextmanager
async def talk(home: Path, folder: Path, *, forms: bool = False, load: str | None = None) -> AsyncIterator[Talk]:
    person = Person()
    program = put_program(home)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    options = {"limit": LONGEST, "stderr": None}
    async with acp.spawn_agent_process(
        person,  # type: ignore[arg-type] # it has only what is asked of it
        *program,
        env=env,
        cwd=folder,
        transport_kwargs=options,
        use_unstable_protocol=True,
    ) as (agent, process):
        capabilities = {"elicitation": {"form": {}}} if forms else {}
        told = await agent.initialize(1, schema.ClientCapabilities.model_validate(capabilities))
        assert told.agent_info is not None
        assert told.agent_info.title == "Demo agent (no model)"
        if load is None:
            session = (await agent.new_session(str(folder), mcp_servers=[])).session_id
        else:
            await agent.load_session(cwd=str(folder), session_id=load, mcp_servers=[])
            session = load
        yield Talk(person, agent, process, session)
