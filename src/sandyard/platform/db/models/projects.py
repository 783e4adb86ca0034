"""Projects and their members."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from sandyard.platform.db.base import Base, Id, Name, belongs_to
from sandyard.platform.db.types import Json


class Project(Base):
    """A repository and its settings."""

    __tablename__ = "projects"

    id: Mapped[Id]
    owner_id: Mapped[str] = mapped_column(belongs_to("users.id"), index=True)
    name: Mapped[Name]
    repository: Mapped[str | None] = mapped_column(String(1000))
    base_branch: Mapped[str | None] = mapped_column(String(250))
    template: Mapped[str | None] = mapped_column(String(256))
    settings: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    archived_at: Mapped[datetime | None]
    connection_error: Mapped[str | None] = mapped_column(String(2000))
    """Why its repository could not be used at the last attempt."""


class DeletedProject(Base):
    """What still applies to the sandboxes and sessions of a project that was deleted, and to their copies. Has the project's id."""

    __tablename__ = "deleted_projects"

    id: Mapped[Id]
    owner_id: Mapped[str] = mapped_column(String(40))
    repository: Mapped[str | None] = mapped_column(String(1000))
    settings: Mapped[dict[str, Any]] = mapped_column(Json)
    deleted_at: Mapped[datetime]


class ProjectMember(Base):
    __tablename__ = "project_members"

    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(belongs_to("users.id"), primary_key=True, index=True)
    added_at: Mapped[datetime]
