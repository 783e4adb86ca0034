"""Rename sandboxes.doomed_at to destroy_requested_at."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("sandboxes", "doomed_at", new_column_name="destroy_requested_at")


def downgrade() -> None:
    op.alter_column("sandboxes", "destroy_requested_at", new_column_name="doomed_at")
