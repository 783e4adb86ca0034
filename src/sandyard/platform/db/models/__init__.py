"""Every table, one class each. Importing this module knows them all."""

from sandyard.platform.db.base import Base
from sandyard.platform.db.models.projects import Project, ProjectMember, Task
from sandyard.platform.db.models.records import Audit, Event, Setting, StoredSecret
from sandyard.platform.db.models.sandboxes import Command, Sandbox, Terminal
from sandyard.platform.db.models.sessions import GitOperation, Message, Session, Turn
from sandyard.platform.db.models.users import ApiToken, Login, Ticket, User

__all__ = [
    "ApiToken",
    "Audit",
    "Base",
    "Command",
    "Event",
    "GitOperation",
    "Login",
    "Message",
    "Project",
    "ProjectMember",
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
