"""Add MCP servers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sandyard.platform.db.types import Json, UtcTime

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "mcp_servers",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("type", sa.String(length=40), nullable=False),
        sa.Column("command", sa.Text(), nullable=True),
        sa.Column("args", Json, nullable=False),
        sa.Column("env", Json, nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("headers", sa.LargeBinary(), nullable=True),
        sa.Column("hints", Json, nullable=False),
        sa.Column("named_by_admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_mcp_servers_project_id_projects"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mcp_servers")),
    )
    op.create_index("uq_mcp_servers_project_id_name", "mcp_servers", ["project_id", "name"], unique=True)


def downgrade() -> None:
    op.drop_table("mcp_servers")
