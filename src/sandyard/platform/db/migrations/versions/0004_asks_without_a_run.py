"""Allow asks without a run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("asks", schema=None) as batch_op:
        batch_op.alter_column("run_id", existing_type=sa.String(length=40), nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM asks WHERE run_id IS NULL")
    with op.batch_alter_table("asks", schema=None) as batch_op:
        batch_op.alter_column("run_id", existing_type=sa.String(length=40), nullable=False)
