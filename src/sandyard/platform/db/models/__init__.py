"""All tables, one class each. Importing this module registers them all."""

from sandyard.platform.db.base import Base
from sandyard.platform.db.models.agents import Agent, AgentInput, AgentRun, Ask, McpServer, ModelCall, ModelProvider
from sandyard.platform.db.models.git import (
    Checkout,
    Checkpoint,
    Credential,
    Delivery,
    GitOperation,
    PullRequest,
)
from sandyard.platform.db.models.projects import DeletedProject, Project, ProjectMember
from sandyard.platform.db.models.records import Audit, Event, Setting, StoredSecret
from sandyard.platform.db.models.sandboxes import Command, Sandbox, Terminal
from sandyard.platform.db.models.sessions import UNTITLED, Message, Session, Turn
from sandyard.platform.db.models.tasks import (
    AgentSnapshot,
    Attempt,
    Preparation,
    PreparationStatus,
    Schedule,
    Step,
    Task,
    TaskNeed,
)
from sandyard.platform.db.models.users import ApiToken, Login, Ticket, User

__all__ = [
    "UNTITLED",
    "Agent",
    "AgentInput",
    "AgentRun",
    "AgentSnapshot",
    "ApiToken",
    "Ask",
    "Attempt",
    "Audit",
    "Base",
    "Checkout",
    "Checkpoint",
    "Command",
    "Credential",
    "DeletedProject",
    "Delivery",
    "Event",
    "GitOperation",
    "Login",
    "McpServer",
    "Message",
    "ModelCall",
    "ModelProvider",
    "Preparation",
    "PreparationStatus",
    "Project",
    "ProjectMember",
    "PullRequest",
    "Sandbox",
    "Schedule",
    "Session",
    "Setting",
    "Step",
    "StoredSecret",
    "Task",
    "TaskNeed",
    "Terminal",
    "Ticket",
    "Turn",
    "User",
]
