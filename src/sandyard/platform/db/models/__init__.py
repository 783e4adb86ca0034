"""Every table, one class each. Importing this module knows them all."""

from sandyard.platform.db.base import Base
from sandyard.platform.db.models.git import (
    Checkout,
    Checkpoint,
    Credential,
    Delivery,
    GitOperation,
    PullRequest,
)
from sandyard.platform.db.models.projects import Project, ProjectMember, Task
from sandyard.platform.db.models.records import Audit, Event, Setting, StoredSecret
from sandyard.platform.db.models.sandboxes import Command, Sandbox, Terminal
from sandyard.platform.db.models.sessions import Message, Session, Turn
from sandyard.platform.db.models.users import ApiToken, Login, Ticket, User

__all__ = [
    "ApiToken",
    "Audit",
    "Base",
    "Checkout",
    "Checkpoint",
    "Command",
    "Credential",
    "Delivery",
    "Event",
    "GitOperation",
    "Login",
    "Message",
    "Project",
    "ProjectMember",
    "PullRequest",
    "Sandbox",
    "Session",
    "Setting",
    "StoredSecret",
    "Task",
    "Terminal",
    "Ticket",
    "Turn",
    "User",
]
