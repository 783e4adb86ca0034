"""Add the network access of sandboxes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sandyard.platform.db.types import Json

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("sandboxes", schema=None) as batch_op:
        batch_op.add_column(sa.Column("network", Json, nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("sandboxes", schema=None) as batch_op:
        batch_op.drop_column("network")
