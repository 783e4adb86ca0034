"""Record whether an administrator has set the address of a model provider."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("model_providers", schema=None) as batch_op:
        batch_op.add_column(sa.Column("named_by_admin", sa.Boolean(), nullable=False, server_default=sa.false()))
    # only an administrator can have set these
    providers = sa.table("model_providers", sa.column("project_id"), sa.column("base_url"), sa.column("named_by_admin"))
    known = sa.or_(providers.c.project_id.is_(None), providers.c.base_url.like("http:%"))
    op.execute(providers.update().where(known).values(named_by_admin=sa.true()))


def downgrade() -> None:
    with op.batch_alter_table("model_providers", schema=None) as batch_op:
        batch_op.drop_column("named_by_admin")
