"""Shared helpers of the model tests: an agent that needs a model, and a session with a sandbox."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandyard.kit.secret import Secret
from sandyard.platform.db.models import Sandbox, Session, Turn
from sandyard.platform.domain.agents.profiles.model import Install, Launch, LaunchRequest
from sandyard.platform.domain.models.model import ModelApi, ModelEndpoint, Price, ProviderInfo
from sandyard.platform.domain.sandboxes.model import utc_now
from tests.unit.platform.domain.models.upstream import Upstream
from tests.unit.platform.world import ROOT

if TYPE_CHECKING:
    from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness

KEY = "sk-planted-8c1f0a97d2e64b35"
PRICE = Price(input=1, output=2)


@dataclass(frozen=True)
class Speaker:
    """A profile of which only the model APIs matter."""

    apis: tuple[ModelApi, ...] = (ModelApi.OPENAI_CHAT,)
    models: tuple[str, ...] = ()
    name: str = "speaker"
    title: str = "Speaker"
    description: str = ""
    demo: bool = False
    install: Install | None = None
    modes: tuple[str, ...] = ()
    auth_method: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def launch(self, request: LaunchRequest) -> Launch:
        return Launch(("true",))


@dataclass
class ModelSession:
    platform: PlatformHarness
    upstream: Upstream
    session: Session
    sandbox: Sandbox
    provider: ProviderInfo
    endpoint: ModelEndpoint

    async def run(self, program: str) -> str:
        """Run a Python program in the sandbox as the agent and return its output. `ask(path, body)` returns status and
        text."""
        config = {"base": self.endpoint.base_url, "capability": self.endpoint.capability.reveal()}
        command = f"python3 - <<'EOF'\nconfig = {json.dumps(config)}\n{AGENT}\n{program}\nEOF"
        return await self.platform.run(self.sandbox, command)

    async def add_turn(self) -> Turn:
        row = Turn(
            id="trn_1",
            session_id=self.session.id,
            number=1,
            origin="person",
            status="running",
            usage={},
            queued_at=utc_now(),
        )
        async with self.platform.services.database.transaction() as tx:
            tx.add(row)
        return row


AGENT = """
import http.client, json, urllib.parse
where = urllib.parse.urlsplit(config["base"])
def send_request(path="/v1/chat/completions", body=None, headers=None, method="POST"):
    line = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    shown = {"Authorization": "Bearer " + config["capability"], "Content-Type": "application/json"}
    line.request(method, where.path + path, json.dumps(body) if body is not None else None, {**shown, **(headers or {})})
    return line.getresponse()
def ask(path="/v1/chat/completions", body=None, headers=None, method="POST"):
    answer = send_request(path, body, headers, method)
    return answer.status, answer.read().decode(), dict(answer.getheaders())
"""


async def open_model_session(platform: PlatformHarness, upstream: Upstream, **project: Any) -> ModelSession:
    """Create a session with a running sandbox, a provider for all users, and the connection to it."""
    services = platform.services
    project_id = await platform.project(platform.owner, **project) if project else None
    session, sandbox = await services.sessions.create(platform.owner, project_id=project_id)
    sandbox = await services.lifecycle.wait_until_provisioned(sandbox.id)
    provider = await services.models.providers.create(
        ROOT,
        name="scripted",
        kind=ModelApi.OPENAI_CHAT,
        base_url=upstream.url,
        key=Secret(KEY),
        models=["tiny"],
        prices={"tiny": PRICE},
    )
    endpoint = await services.models.open_endpoint(session, sandbox, Speaker(), None)
    assert endpoint is not None
    return ModelSession(platform, upstream, session, sandbox, provider, endpoint)
