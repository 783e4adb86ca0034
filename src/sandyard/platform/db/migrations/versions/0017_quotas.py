"""Quotas of users, and what they are compared with: sizes of sandboxes, owners of requests to models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sandyard.platform.db.types import Json

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("users", schema=None) as batch_op:
        batch_op.add_column(sa.Column("quotas", Json, nullable=False, server_default="{}"))
    with op.batch_alter_table("users", schema=None) as batch_op:
        batch_op.alter_column("quotas", server_default=None)
    with op.batch_alter_table("sandboxes", schema=None) as batch_op:
        batch_op.add_column(sa.Column("cpu_count", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("memory_mb", sa.Integer(), nullable=True))
    with op.batch_alter_table("model_calls", schema=None) as batch_op:
        batch_op.add_column(sa.Column("owner_id", sa.String(length=40), nullable=True))
        batch_op.create_foreign_key(
            op.f("fk_model_calls_owner_id_users"), "users", ["owner_id"], ["id"], ondelete="SET NULL"
        )
        batch_op.create_index("ix_model_calls_owner_id_started_at", ["owner_id", "started_at"])
    op.execute(
        "UPDATE model_calls SET owner_id = (SELECT owner_id FROM sessions WHERE sessions.id = model_calls.session_id)"
    )


def downgrade() -> None:
    with op.batch_alter_table("model_calls", schema=None) as batch_op:
        batch_op.drop_index("ix_model_calls_owner_id_started_at")
        batch_op.drop_constraint(op.f("fk_model_calls_owner_id_users"), type_="foreignkey")
        batch_op.drop_column("owner_id")
    with op.batch_alter_table("sandboxes", schema=None) as batch_op:
        batch_op.drop_column("memory_mb")
        batch_op.drop_column("cpu_count")
    with op.batch_alter_table("users", schema=None) as batch_op:
        batch_op.drop_column("quotas")
