"""Add checkouts, checkpoints and pull requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sandyard.platform.db.types import Json, UtcTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "credentials",
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("hint", sa.String(length=100), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_credentials_project_id_projects"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "kind", name=op.f("pk_credentials")),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("delivery", sa.String(length=100), nullable=False),
        sa.Column("event", sa.String(length=60), nullable=False),
        sa.Column("received_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_webhook_deliveries_project_id_projects"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "delivery", name=op.f("pk_webhook_deliveries")),
    )
    with op.batch_alter_table("webhook_deliveries", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_webhook_deliveries_received_at"), ["received_at"], unique=False)

    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("session_id", sa.String(length=40), nullable=True),
        sa.Column("sandbox_id", sa.String(length=40), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=False),
        sa.Column("commit", sa.String(length=64), nullable=False),
        sa.Column("head", sa.String(length=64), nullable=False),
        sa.Column("branch", sa.String(length=250), nullable=False),
        sa.Column("base_branch", sa.String(length=250), nullable=False),
        sa.Column("base_commit", sa.String(length=64), nullable=False),
        sa.Column("changed", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_checkpoints_project_id_projects"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_checkpoints_session_id_sessions"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
    )
    with op.batch_alter_table("checkpoints", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_checkpoints_project_id"), ["project_id"], unique=False)
        batch_op.create_index("ix_checkpoints_sandbox_id_id", ["sandbox_id", "id"], unique=False)
        batch_op.create_index("ix_checkpoints_session_id_id", ["session_id", "id"], unique=False)

    op.create_table(
        "pull_requests",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("session_id", sa.String(length=40), nullable=True),
        sa.Column("task_id", sa.String(length=40), nullable=True),
        sa.Column("sandbox_id", sa.String(length=40), nullable=True),
        sa.Column("forge", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("title", sa.String(length=300), nullable=False),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("draft", sa.Boolean(), nullable=False),
        sa.Column("head_branch", sa.String(length=250), nullable=False),
        sa.Column("base_branch", sa.String(length=250), nullable=False),
        sa.Column("head_commit", sa.String(length=64), nullable=True),
        sa.Column("mergeable", sa.Boolean(), nullable=True),
        sa.Column("review", sa.String(length=40), nullable=False),
        sa.Column("checks", sa.String(length=40), nullable=False),
        sa.Column("detail", Json, nullable=False),
        sa.Column("told", Json, nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.Column("looked_at", UtcTime(), nullable=True),
        sa.Column("merged_at", UtcTime(), nullable=True),
        sa.Column("closed_at", UtcTime(), nullable=True),
        sa.Column("branch_deleted_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_pull_requests_project_id_projects"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_pull_requests_session_id_sessions"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_pull_requests_task_id_tasks"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pull_requests")),
    )
    with op.batch_alter_table("pull_requests", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_pull_requests_head_branch"), ["head_branch"], unique=False)
        batch_op.create_index(batch_op.f("ix_pull_requests_session_id"), ["session_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_pull_requests_state"), ["state"], unique=False)
        batch_op.create_index(batch_op.f("ix_pull_requests_task_id"), ["task_id"], unique=False)
        batch_op.create_index("uq_pull_requests_project_id_number", ["project_id", "number"], unique=True)

    op.create_table(
        "checkouts",
        sa.Column("sandbox_id", sa.String(length=40), nullable=False),
        sa.Column("session_id", sa.String(length=40), nullable=True),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("folder", sa.String(length=1000), nullable=False),
        sa.Column("branch", sa.String(length=250), nullable=False),
        sa.Column("base_branch", sa.String(length=250), nullable=False),
        sa.Column("base_commit", sa.String(length=64), nullable=False),
        sa.Column("head", sa.String(length=64), nullable=False),
        sa.Column("shallow", Json, nullable=False),
        sa.Column("pushed", sa.String(length=64), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_checkouts_project_id_projects"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["sandbox_id"], ["sandboxes.id"], name=op.f("fk_checkouts_sandbox_id_sandboxes"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_checkouts_session_id_sessions"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("sandbox_id", name=op.f("pk_checkouts")),
    )
    with op.batch_alter_table("checkouts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_checkouts_branch"), ["branch"], unique=False)
        batch_op.create_index(batch_op.f("ix_checkouts_project_id"), ["project_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_checkouts_session_id"), ["session_id"], unique=False)

    with op.batch_alter_table("git_operations", schema=None) as batch_op:
        batch_op.add_column(sa.Column("sandbox_id", sa.String(length=40), nullable=True))
        batch_op.add_column(sa.Column("user_id", sa.String(length=40), nullable=True))
        batch_op.add_column(sa.Column("arguments", Json, nullable=False))
        batch_op.add_column(sa.Column("attempts", sa.Integer(), nullable=False))
        batch_op.add_column(sa.Column("error_code", sa.String(length=40), nullable=True))
        batch_op.add_column(sa.Column("created_at", UtcTime(), nullable=False))
        batch_op.alter_column("started_at", existing_type=UtcTime(), nullable=True)
        batch_op.create_index("ix_git_operations_sandbox_id_id", ["sandbox_id", "id"], unique=False)
        batch_op.create_index("ix_git_operations_status", ["status"], unique=False)
        batch_op.create_index(batch_op.f("ix_git_operations_user_id"), ["user_id"], unique=False)
        batch_op.create_foreign_key(
            batch_op.f("fk_git_operations_user_id_users"), "users", ["user_id"], ["id"], ondelete="SET NULL"
        )
        batch_op.create_foreign_key(
            batch_op.f("fk_git_operations_sandbox_id_sandboxes"),
            "sandboxes",
            ["sandbox_id"],
            ["id"],
            ondelete="CASCADE",
        )


def downgrade() -> None:
    with op.batch_alter_table("git_operations", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_git_operations_sandbox_id_sandboxes"), type_="foreignkey")
        batch_op.drop_constraint(batch_op.f("fk_git_operations_user_id_users"), type_="foreignkey")
        batch_op.drop_index(batch_op.f("ix_git_operations_user_id"))
        batch_op.drop_index("ix_git_operations_status")
        batch_op.drop_index("ix_git_operations_sandbox_id_id")
        batch_op.alter_column("started_at", existing_type=UtcTime(), nullable=False)
        batch_op.drop_column("created_at")
        batch_op.drop_column("error_code")
        batch_op.drop_column("attempts")
        batch_op.drop_column("arguments")
        batch_op.drop_column("user_id")
        batch_op.drop_column("sandbox_id")

    with op.batch_alter_table("checkouts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_checkouts_session_id"))
        batch_op.drop_index(batch_op.f("ix_checkouts_project_id"))
        batch_op.drop_index(batch_op.f("ix_checkouts_branch"))

    op.drop_table("checkouts")
    with op.batch_alter_table("pull_requests", schema=None) as batch_op:
        batch_op.drop_index("uq_pull_requests_project_id_number")
        batch_op.drop_index(batch_op.f("ix_pull_requests_task_id"))
        batch_op.drop_index(batch_op.f("ix_pull_requests_state"))
        batch_op.drop_index(batch_op.f("ix_pull_requests_session_id"))
        batch_op.drop_index(batch_op.f("ix_pull_requests_head_branch"))

    op.drop_table("pull_requests")
    with op.batch_alter_table("checkpoints", schema=None) as batch_op:
        batch_op.drop_index("ix_checkpoints_session_id_id")
        batch_op.drop_index("ix_checkpoints_sandbox_id_id")
        batch_op.drop_index(batch_op.f("ix_checkpoints_project_id"))

    op.drop_table("checkpoints")
    with op.batch_alter_table("webhook_deliveries", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_webhook_deliveries_received_at"))

    op.drop_table("webhook_deliveries")
    op.drop_table("credentials")
