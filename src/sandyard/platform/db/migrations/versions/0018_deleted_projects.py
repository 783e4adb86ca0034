"""Settings of deleted projects, which still apply to their sandboxes and sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sandyard.platform.db.types import Json, UtcTime

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deleted_projects",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("repository", sa.String(length=1000), nullable=True),
        sa.Column("settings", Json, nullable=False),
        sa.Column("deleted_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deleted_projects")),
    )
    for table in ("sessions", "sandboxes"):
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.add_column(sa.Column("deleted_project_id", sa.String(length=40), nullable=True))


def downgrade() -> None:
    for table in ("sandboxes", "sessions"):
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.drop_column("deleted_project_id")
    op.drop_table("deleted_projects")
