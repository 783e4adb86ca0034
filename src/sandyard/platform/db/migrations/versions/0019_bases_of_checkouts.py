"""The commits of the base branch that the platform put into a checkout."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sandyard.platform.db.types import Json

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("checkouts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("bases", Json, nullable=False, server_default="[]"))


def downgrade() -> None:
    with op.batch_alter_table("checkouts", schema=None) as batch_op:
        batch_op.drop_column("bases")
