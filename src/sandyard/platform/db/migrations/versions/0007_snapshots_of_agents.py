"""Add snapshots of agents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sandyard.platform.db.types import UtcTime

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "agent_snapshots",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("agent", sa.String(length=100), nullable=False),
        sa.Column("template", sa.String(length=256), nullable=False),
        sa.Column("snapshot", sa.String(length=256), nullable=True),
        sa.Column("engine_id", sa.String(length=100), nullable=True),
        sa.Column("sandbox_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("used_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agent_snapshots")),
        sa.UniqueConstraint("key", name=op.f("uq_agent_snapshots_key")),
    )


def downgrade() -> None:
    op.drop_table("agent_snapshots")
