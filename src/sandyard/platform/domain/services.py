"""All services that the API uses."""

from __future__ import annotations

from dataclasses import dataclass

from sandyard.kit.clock import Clock
from sandyard.platform.db.database import Database
from sandyard.platform.db.ownership import Ownership
from sandyard.platform.domain.agents.catalogue import AgentCatalogue
from sandyard.platform.domain.agents.questions.service import Asks
from sandyard.platform.domain.agents.runner.turns import AgentTurns
from sandyard.platform.domain.agents.trials import Trials
from sandyard.platform.domain.audit.service import Audit
from sandyard.platform.domain.events.feed import Feed
from sandyard.platform.domain.forge.access import ForgeAccess
from sandyard.platform.domain.forge.connection_test import ConnectionTests
from sandyard.platform.domain.forge.service import PullRequests
from sandyard.platform.domain.forge.webhooks import Webhooks
from sandyard.platform.domain.git.service import GitService
from sandyard.platform.domain.instance.disk import DiskKeeper
from sandyard.platform.domain.instance.quotas import QuotaService
from sandyard.platform.domain.instance.status import StatusReader
from sandyard.platform.domain.mcp_servers.service import McpServers
from sandyard.platform.domain.models.service import Models
from sandyard.platform.domain.preparations.service import Preparations
from sandyard.platform.domain.previews.service import Previews
from sandyard.platform.domain.projects.credentials import Credentials
from sandyard.platform.domain.projects.sample import Samples
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.remote.service import Remotes
from sandyard.platform.domain.sandboxes.commands import Commands
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.maintenance import SandboxMaintenance
from sandyard.platform.domain.sandboxes.service import Sandboxes
from sandyard.platform.domain.sandboxes.terminals import Terminals
from sandyard.platform.domain.secrets.encryption_keys import EncryptionKeys
from sandyard.platform.domain.secrets.service import Secrets
from sandyard.platform.domain.sessions.service import Sessions
from sandyard.platform.domain.tasks.attempts import Attempts
from sandyard.platform.domain.tasks.board import Tasks
from sandyard.platform.domain.tasks.schedules import Schedules
from sandyard.platform.domain.users.service import Users
from sandyard.platform.settings import PlatformSettings


@dataclass(frozen=True, slots=True)
class Services:
    settings: PlatformSettings
    clock: Clock
    database: Database
    ownership: Ownership | None
    """Ownership of a database that several platform processes can reach."""
    events: Feed
    users: Users
    audit: Audit
    status: StatusReader
    disk: DiskKeeper
    quotas: QuotaService
    secrets: Secrets
    encryption_keys: EncryptionKeys
    projects: Projects
    samples: Samples
    agents: AgentCatalogue
    trials: Trials
    engine: SandboxEngine
    lifecycle: Lifecycle
    maintenance: SandboxMaintenance
    sandboxes: Sandboxes
    commands: Commands
    preparations: Preparations
    previews: Previews
    sessions: Sessions
    turns: AgentTurns
    attempts: Attempts
    tasks: Tasks
    schedules: Schedules
    asks: Asks
    terminals: Terminals
    remotes: Remotes
    credentials: Credentials
    models: Models
    mcp_servers: McpServers
    access: ForgeAccess
    connection_tests: ConnectionTests
    git: GitService
    pull_requests: PullRequests
    webhooks: Webhooks
