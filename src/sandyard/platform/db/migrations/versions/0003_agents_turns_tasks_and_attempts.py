"""Add agents, turns, tasks and attempts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sandyard.platform.db.types import BigInt, Json, UtcTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=True),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("title", sa.String(length=200), nullable=False),
        sa.Column("definition", Json, nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name=op.f("fk_agents_owner_id_users"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agents")),
        sa.UniqueConstraint("name", name=op.f("uq_agents_name")),
    )
    with op.batch_alter_table("agents", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_agents_owner_id"), ["owner_id"], unique=False)

    op.create_table(
        "model_providers",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=True),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("base_url", sa.String(length=1000), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=True),
        sa.Column("hint", sa.String(length=100), nullable=False),
        sa.Column("models", Json, nullable=False),
        sa.Column("prices", Json, nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_model_providers_project_id_projects"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_providers")),
    )
    with op.batch_alter_table("model_providers", schema=None) as batch_op:
        batch_op.create_index("uq_model_providers_project_id_name", ["project_id", "name"], unique=True)

    op.create_table(
        "preparations",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=True),
        sa.Column("agent", sa.String(length=100), nullable=True),
        sa.Column("template", sa.String(length=256), nullable=False),
        sa.Column("base_branch", sa.String(length=250), nullable=False),
        sa.Column("base_commit", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=40), nullable=False),
        sa.Column("sandbox_id", sa.String(length=40), nullable=True),
        sa.Column("snapshot", sa.String(length=256), nullable=True),
        sa.Column("detail", Json, nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_code", sa.String(length=40), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("finished_at", UtcTime(), nullable=True),
        sa.Column("used_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["owner_id"], ["users.id"], name=op.f("fk_preparations_owner_id_users"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_preparations_project_id_projects"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_preparations")),
    )
    with op.batch_alter_table("preparations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_preparations_owner_id"), ["owner_id"], unique=False)
        batch_op.create_index("uq_preparations_project_id_key", ["project_id", "key"], unique=True)

    op.create_table(
        "attempts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.String(length=40), nullable=False),
        sa.Column("agent", sa.String(length=100), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("status", sa.String(length=40), nullable=False),
        sa.Column("step", sa.String(length=40), nullable=True),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("work", Json, nullable=False),
        sa.Column("detail", Json, nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_code", sa.String(length=40), nullable=True),
        sa.Column("cancel_at", UtcTime(), nullable=True),
        sa.Column("queued_at", UtcTime(), nullable=False),
        sa.Column("started_at", UtcTime(), nullable=True),
        sa.Column("finished_at", UtcTime(), nullable=True),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_id"], ["users.id"], name=op.f("fk_attempts_owner_id_users"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_attempts_project_id_projects"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_attempts_task_id_tasks"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
    )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_attempts_owner_id"), ["owner_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_attempts_project_id"), ["project_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_attempts_session_id"), ["session_id"], unique=False)
        batch_op.create_index("ix_attempts_status", ["status"], unique=False)
        batch_op.create_index("uq_attempts_task_id_number", ["task_id", "number"], unique=True)

    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("cron", sa.String(length=100), nullable=False),
        sa.Column("timezone", sa.String(length=60), nullable=False),
        sa.Column("task", Json, nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("next_at", UtcTime(), nullable=True),
        sa.Column("last_at", UtcTime(), nullable=True),
        sa.Column("last_task_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["last_task_id"], ["tasks.id"], name=op.f("fk_schedules_last_task_id_tasks"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["owner_id"], ["users.id"], name=op.f("fk_schedules_owner_id_users"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_schedules_project_id_projects"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    with op.batch_alter_table("schedules", schema=None) as batch_op:
        batch_op.create_index("ix_schedules_next_at", ["next_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_schedules_owner_id"), ["owner_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_schedules_project_id"), ["project_id"], unique=False)

    op.create_table(
        "task_needs",
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("needs_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(
            ["needs_id"], ["tasks.id"], name=op.f("fk_task_needs_needs_id_tasks"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_task_needs_task_id_tasks"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", "needs_id", name=op.f("pk_task_needs")),
    )
    with op.batch_alter_table("task_needs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_task_needs_needs_id"), ["needs_id"], unique=False)

    op.create_table(
        "steps",
        sa.Column("attempt_id", sa.String(length=40), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("status", sa.String(length=40), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("detail", Json, nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("started_at", UtcTime(), nullable=False),
        sa.Column("finished_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_steps_attempt_id_attempts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("attempt_id", "round", "number", name=op.f("pk_steps")),
    )
    op.create_table(
        "agent_runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("session_id", sa.String(length=40), nullable=False),
        sa.Column("sandbox_id", sa.String(length=40), nullable=False),
        sa.Column("agent", sa.String(length=100), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("status", sa.String(length=40), nullable=False),
        sa.Column("acp_session", sa.String(length=300), nullable=True),
        sa.Column("capabilities", Json, nullable=False),
        sa.Column("options", Json, nullable=False),
        sa.Column("next_request", sa.Integer(), nullable=False),
        sa.Column("sent", BigInt, nullable=False),
        sa.Column("consumed", BigInt, nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_code", sa.String(length=40), nullable=True),
        sa.Column("started_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["sandbox_id"], ["sandboxes.id"], name=op.f("fk_agent_runs_sandbox_id_sandboxes"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_agent_runs_session_id_sessions"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agent_runs")),
    )
    with op.batch_alter_table("agent_runs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_agent_runs_sandbox_id"), ["sandbox_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_agent_runs_session_id"), ["session_id"], unique=False)
        batch_op.create_index("ix_agent_runs_status", ["status"], unique=False)

    op.create_table(
        "agent_inputs",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("position", BigInt, autoincrement=False, nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["agent_runs.id"], name=op.f("fk_agent_inputs_run_id_agent_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_agent_inputs")),
    )
    op.create_table(
        "asks",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("session_id", sa.String(length=40), nullable=False),
        sa.Column("turn_id", sa.String(length=40), nullable=True),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("request", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("detail", Json, nullable=False),
        sa.Column("status", sa.String(length=40), nullable=False),
        sa.Column("answer", Json, nullable=True),
        sa.Column("decided_by", sa.String(length=40), nullable=True),
        sa.Column("user_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=True),
        sa.Column("answered_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["agent_runs.id"], name=op.f("fk_asks_run_id_agent_runs"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_asks_session_id_sessions"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_asks_turn_id_turns"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_asks_user_id_users"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_asks")),
    )
    with op.batch_alter_table("asks", schema=None) as batch_op:
        batch_op.create_index("ix_asks_session_id_status", ["session_id", "status"], unique=False)
        batch_op.create_index("ix_asks_status", ["status"], unique=False)
        batch_op.create_index(batch_op.f("ix_asks_turn_id"), ["turn_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_asks_user_id"), ["user_id"], unique=False)
        batch_op.create_index("uq_asks_run_id_request", ["run_id", "request"], unique=True)

    op.create_table(
        "model_calls",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("provider_id", sa.String(length=40), nullable=True),
        sa.Column("project_id", sa.String(length=40), nullable=True),
        sa.Column("task_id", sa.String(length=40), nullable=True),
        sa.Column("session_id", sa.String(length=40), nullable=True),
        sa.Column("turn_id", sa.String(length=40), nullable=True),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("input_tokens", BigInt, nullable=True),
        sa.Column("output_tokens", BigInt, nullable=True),
        sa.Column("cache_read_tokens", BigInt, nullable=True),
        sa.Column("cache_write_tokens", BigInt, nullable=True),
        sa.Column("cost_micros", BigInt, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("started_at", UtcTime(), nullable=False),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_model_calls_project_id_projects"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["provider_id"],
            ["model_providers.id"],
            name=op.f("fk_model_calls_provider_id_model_providers"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_model_calls_session_id_sessions"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_model_calls_task_id_tasks"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["turn_id"], ["turns.id"], name=op.f("fk_model_calls_turn_id_turns"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_calls")),
    )
    with op.batch_alter_table("model_calls", schema=None) as batch_op:
        batch_op.create_index("ix_model_calls_project_id_started_at", ["project_id", "started_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_model_calls_provider_id"), ["provider_id"], unique=False)
        batch_op.create_index("ix_model_calls_session_id", ["session_id"], unique=False)
        batch_op.create_index("ix_model_calls_task_id", ["task_id"], unique=False)
        batch_op.create_index("ix_model_calls_turn_id", ["turn_id"], unique=False)

    with op.batch_alter_table("messages", schema=None) as batch_op:
        batch_op.add_column(sa.Column("updated_at", UtcTime(), nullable=True))

    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("model", sa.String(length=200), nullable=True))
        batch_op.add_column(sa.Column("mode", sa.String(length=100), nullable=True))

    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.add_column(sa.Column("attempts", Json, nullable=False))
        batch_op.add_column(sa.Column("budget", Json, nullable=False))
        batch_op.add_column(sa.Column("source", Json, nullable=False))
        batch_op.add_column(sa.Column("source_key", sa.String(length=200), nullable=True))
        batch_op.add_column(sa.Column("error", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("started_at", UtcTime(), nullable=True))
        batch_op.add_column(sa.Column("finished_at", UtcTime(), nullable=True))
        batch_op.alter_column(
            "model", existing_type=sa.VARCHAR(length=100), type_=sa.String(length=200), existing_nullable=True
        )
        batch_op.create_unique_constraint(batch_op.f("uq_tasks_source_key"), ["source_key"])

    with op.batch_alter_table("turns", schema=None) as batch_op:
        batch_op.add_column(sa.Column("key", sa.String(length=200), nullable=True))
        batch_op.add_column(sa.Column("origin", sa.String(length=40), nullable=False))
        batch_op.add_column(sa.Column("user_id", sa.String(length=40), nullable=True))
        batch_op.add_column(sa.Column("prompt_id", sa.String(length=40), nullable=True))
        batch_op.add_column(sa.Column("model", sa.String(length=200), nullable=True))
        batch_op.add_column(sa.Column("mode", sa.String(length=100), nullable=True))
        batch_op.add_column(sa.Column("run_id", sa.String(length=40), nullable=True))
        batch_op.add_column(sa.Column("request", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("error_code", sa.String(length=40), nullable=True))
        batch_op.add_column(sa.Column("queued_at", UtcTime(), nullable=False))
        batch_op.add_column(sa.Column("active_at", UtcTime(), nullable=True))
        batch_op.add_column(sa.Column("stuck_at", UtcTime(), nullable=True))
        batch_op.add_column(sa.Column("cancel_at", UtcTime(), nullable=True))
        batch_op.alter_column("started_at", existing_type=sa.DATETIME(), nullable=True)
        batch_op.create_index(batch_op.f("ix_turns_run_id"), ["run_id"], unique=False)
        batch_op.create_index("ix_turns_status", ["status"], unique=False)
        batch_op.create_index(batch_op.f("ix_turns_user_id"), ["user_id"], unique=False)
        batch_op.create_unique_constraint(batch_op.f("uq_turns_key"), ["key"])
        batch_op.create_foreign_key(
            batch_op.f("fk_turns_run_id_agent_runs"), "agent_runs", ["run_id"], ["id"], ondelete="SET NULL"
        )
        batch_op.create_foreign_key(
            batch_op.f("fk_turns_user_id_users"), "users", ["user_id"], ["id"], ondelete="SET NULL"
        )


def downgrade() -> None:
    with op.batch_alter_table("turns", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_turns_user_id_users"), type_="foreignkey")
        batch_op.drop_constraint(batch_op.f("fk_turns_run_id_agent_runs"), type_="foreignkey")
        batch_op.drop_constraint(batch_op.f("uq_turns_key"), type_="unique")
        batch_op.drop_index(batch_op.f("ix_turns_user_id"))
        batch_op.drop_index("ix_turns_status")
        batch_op.drop_index(batch_op.f("ix_turns_run_id"))
        batch_op.alter_column("started_at", existing_type=sa.DATETIME(), nullable=False)
        batch_op.drop_column("cancel_at")
        batch_op.drop_column("stuck_at")
        batch_op.drop_column("active_at")
        batch_op.drop_column("queued_at")
        batch_op.drop_column("error_code")
        batch_op.drop_column("request")
        batch_op.drop_column("run_id")
        batch_op.drop_column("mode")
        batch_op.drop_column("model")
        batch_op.drop_column("prompt_id")
        batch_op.drop_column("user_id")
        batch_op.drop_column("origin")
        batch_op.drop_column("key")

    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("uq_tasks_source_key"), type_="unique")
        batch_op.alter_column(
            "model", existing_type=sa.String(length=200), type_=sa.VARCHAR(length=100), existing_nullable=True
        )
        batch_op.drop_column("finished_at")
        batch_op.drop_column("started_at")
        batch_op.drop_column("error")
        batch_op.drop_column("source_key")
        batch_op.drop_column("source")
        batch_op.drop_column("budget")
        batch_op.drop_column("attempts")

    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.drop_column("mode")
        batch_op.drop_column("model")

    with op.batch_alter_table("messages", schema=None) as batch_op:
        batch_op.drop_column("updated_at")

    with op.batch_alter_table("model_calls", schema=None) as batch_op:
        batch_op.drop_index("ix_model_calls_turn_id")
        batch_op.drop_index("ix_model_calls_task_id")
        batch_op.drop_index("ix_model_calls_session_id")
        batch_op.drop_index(batch_op.f("ix_model_calls_provider_id"))
        batch_op.drop_index("ix_model_calls_project_id_started_at")

    op.drop_table("model_calls")
    with op.batch_alter_table("asks", schema=None) as batch_op:
        batch_op.drop_index("uq_asks_run_id_request")
        batch_op.drop_index(batch_op.f("ix_asks_user_id"))
        batch_op.drop_index(batch_op.f("ix_asks_turn_id"))
        batch_op.drop_index("ix_asks_status")
        batch_op.drop_index("ix_asks_session_id_status")

    op.drop_table("asks")
    op.drop_table("agent_inputs")
    with op.batch_alter_table("agent_runs", schema=None) as batch_op:
        batch_op.drop_index("ix_agent_runs_status")
        batch_op.drop_index(batch_op.f("ix_agent_runs_session_id"))
        batch_op.drop_index(batch_op.f("ix_agent_runs_sandbox_id"))

    op.drop_table("agent_runs")
    op.drop_table("steps")
    with op.batch_alter_table("task_needs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_task_needs_needs_id"))

    op.drop_table("task_needs")
    with op.batch_alter_table("schedules", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_schedules_project_id"))
        batch_op.drop_index(batch_op.f("ix_schedules_owner_id"))
        batch_op.drop_index("ix_schedules_next_at")

    op.drop_table("schedules")
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_index("uq_attempts_task_id_number")
        batch_op.drop_index("ix_attempts_status")
        batch_op.drop_index(batch_op.f("ix_attempts_session_id"))
        batch_op.drop_index(batch_op.f("ix_attempts_project_id"))
        batch_op.drop_index(batch_op.f("ix_attempts_owner_id"))

    op.drop_table("attempts")
    with op.batch_alter_table("preparations", schema=None) as batch_op:
        batch_op.drop_index("uq_preparations_project_id_key")
        batch_op.drop_index(batch_op.f("ix_preparations_owner_id"))

    op.drop_table("preparations")
    with op.batch_alter_table("model_providers", schema=None) as batch_op:
        batch_op.drop_index("uq_model_providers_project_id_name")

    op.drop_table("model_providers")
    with op.batch_alter_table("agents", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_agents_owner_id"))

    op.drop_table("agents")
