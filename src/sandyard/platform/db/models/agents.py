"""Agents: their definitions, their processes in sandboxes, their requests, and the models they use."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, Index, Integer, LargeBinary, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from sandyard.platform.db.base import Base, Id, LongText, Name, ShortText, belongs_to, may_refer_to
from sandyard.platform.db.types import BigInt, Json


class Agent(Base):
    """A user's own agent: an ACP command line. The agents that come with the platform have no row."""

    __tablename__ = "agents"

    id: Mapped[Id]
    owner_id: Mapped[str | None] = mapped_column(belongs_to("users.id"), index=True)  # None: available to everybody
    name: Mapped[str] = mapped_column(String(100), unique=True)
    title: Mapped[Name]
    definition: Mapped[dict[str, Any]] = mapped_column(Json)  # argv, install, envs, models, modes …
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class AgentRun(Base):
    """One run of an agent's process in a sandbox.

    `consumed` counts the bytes of its output that have been processed. It is increased in the transaction that stores
    their effects.
    """

    __tablename__ = "agent_runs"
    __table_args__ = (Index("ix_agent_runs_status", "status"),)

    id: Mapped[Id]
    session_id: Mapped[str] = mapped_column(belongs_to("sessions.id"), index=True)
    sandbox_id: Mapped[str] = mapped_column(belongs_to("sandboxes.id"), index=True)
    agent: Mapped[str] = mapped_column(String(100))
    model: Mapped[str | None] = mapped_column(String(200))
    status: Mapped[ShortText]  # starting, ready, ended, lost
    acp_session: Mapped[str | None] = mapped_column(String(300))  # the agent's own id of the conversation
    capabilities: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)  # from its response to initialize
    options: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)  # its current modes, models and other options
    next_request: Mapped[int] = mapped_column(Integer, default=0)  # the number of our next request to it
    sent: Mapped[int] = mapped_column(BigInt, default=0)  # bytes decided to be sent to it: rows of agent_inputs
    consumed: Mapped[int] = mapped_column(BigInt, default=0)
    exit_code: Mapped[int | None] = mapped_column(Integer)
    error: Mapped[str | None] = mapped_column(Text)
    error_code: Mapped[str | None] = mapped_column(String(40))
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class AgentInput(Base):
    """A line to an agent, stored in the transaction that decided it.

    It is delivered to its position in the journal in the sandbox until that succeeds. Repeating it is safe: the same
    bytes at the same position.
    """

    __tablename__ = "agent_inputs"

    run_id: Mapped[str] = mapped_column(belongs_to("agent_runs.id"), primary_key=True)
    position: Mapped[int] = mapped_column(BigInt, primary_key=True, autoincrement=False)
    line: Mapped[LongText]


class Ask(Base):
    """A permission request or question of an agent to a person.

    One that the platform itself asks may belong to a session alone, without a turn or a run.
    """

    __tablename__ = "asks"
    __table_args__ = (
        Index("uq_asks_run_id_request", "run_id", "request", unique=True),
        Index("ix_asks_session_id_status", "session_id", "status"),
        Index("ix_asks_status", "status"),
    )

    id: Mapped[Id]
    session_id: Mapped[str] = mapped_column(belongs_to("sessions.id"))
    turn_id: Mapped[str | None] = mapped_column(may_refer_to("turns.id"), index=True)
    run_id: Mapped[str | None] = mapped_column(belongs_to("agent_runs.id"))
    request: Mapped[str] = mapped_column(String(200))  # the agent's id of its request, as JSON
    kind: Mapped[ShortText]  # permission, question
    title: Mapped[LongText]
    detail: Mapped[dict[str, Any]] = mapped_column(Json)  # the tool call, the options, the form
    status: Mapped[ShortText]  # pending, answered, expired, cancelled
    answer: Mapped[dict[str, Any] | None] = mapped_column(Json)
    decided_by: Mapped[str | None] = mapped_column(String(40))  # person, policy, timeout, cancel
    user_id: Mapped[str | None] = mapped_column(may_refer_to("users.id"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    answered_at: Mapped[datetime | None]


class ModelProvider(Base):
    """A model provider and its API key. Without a project it is available to everybody."""

    __tablename__ = "model_providers"
    __table_args__ = (Index("uq_model_providers_project_id_name", "project_id", "name", unique=True),)

    id: Mapped[Id]
    project_id: Mapped[str | None] = mapped_column(belongs_to("projects.id"))
    name: Mapped[str] = mapped_column(String(100))
    kind: Mapped[ShortText]  # anthropic, openai, openai_chat, gemini
    base_url: Mapped[str] = mapped_column(String(1000))
    # an administrator has set the address
    named_by_admin: Mapped[bool] = mapped_column(default=False, server_default=false())
    key: Mapped[bytes | None] = mapped_column(LargeBinary)  # encrypted; None: not needed
    hint: Mapped[str] = mapped_column(String(100))  # the part of the key that may be shown
    models: Mapped[list[str]] = mapped_column(Json, default=list)  # the first is the default
    prices: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)  # by model: US dollars per million tokens
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class McpServer(Base):
    """An MCP server for agents of a project: a command in their sandbox, or a URL behind the platform's gateway."""

    __tablename__ = "mcp_servers"
    __table_args__ = (Index("uq_mcp_servers_project_id_name", "project_id", "name", unique=True),)

    id: Mapped[Id]
    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"))
    name: Mapped[ShortText]
    type: Mapped[ShortText]  # stdio, http
    command: Mapped[str | None] = mapped_column(Text)
    args: Mapped[list[str]] = mapped_column(Json, default=list)
    env: Mapped[dict[str, str]] = mapped_column(Json, default=dict)  # not secret: it is visible in the sandbox
    url: Mapped[str | None] = mapped_column(Text)
    headers: Mapped[bytes | None] = mapped_column(LargeBinary)  # encrypted; None: not needed
    hints: Mapped[dict[str, str]] = mapped_column(Json, default=dict)  # by header: the part that may be shown
    named_by_admin: Mapped[bool] = mapped_column(Boolean)  # an administrator has set the URL
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class ModelCall(Base):
    """One request to a model, recorded by the proxy."""

    __tablename__ = "model_calls"
    __table_args__ = (
        Index("ix_model_calls_project_id_started_at", "project_id", "started_at"),
        Index("ix_model_calls_task_id", "task_id"),
        Index("ix_model_calls_turn_id", "turn_id"),
        Index("ix_model_calls_session_id", "session_id"),
        Index("ix_model_calls_owner_id_started_at", "owner_id", "started_at"),
    )

    id: Mapped[Id]
    provider_id: Mapped[str | None] = mapped_column(may_refer_to("model_providers.id"), index=True)
    owner_id: Mapped[str | None] = mapped_column(may_refer_to("users.id"))  # of the session
    project_id: Mapped[str | None] = mapped_column(may_refer_to("projects.id"))
    task_id: Mapped[str | None] = mapped_column(may_refer_to("tasks.id"))
    session_id: Mapped[str | None] = mapped_column(may_refer_to("sessions.id"))
    turn_id: Mapped[str | None] = mapped_column(may_refer_to("turns.id"))
    model: Mapped[str | None] = mapped_column(String(200))
    status: Mapped[int] = mapped_column(Integer)  # HTTP status of the provider; 0: no response
    # including those read from and written to a cache; None: not reported
    input_tokens: Mapped[int | None] = mapped_column(BigInt)
    output_tokens: Mapped[int | None] = mapped_column(BigInt)
    cache_read_tokens: Mapped[int | None] = mapped_column(BigInt)
    cache_write_tokens: Mapped[int | None] = mapped_column(BigInt)
    cost_micros: Mapped[int | None] = mapped_column(BigInt)  # millionths of a US dollar; None: price unknown
    error: Mapped[str | None] = mapped_column(Text)
    started_at: Mapped[datetime]
    duration_ms: Mapped[int] = mapped_column(Integer)
