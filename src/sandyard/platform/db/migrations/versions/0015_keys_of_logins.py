"""Store the hash of each login's key. Logins without one end: their cookies are no longer accepted, so people sign in again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _end_logins()
    with op.batch_alter_table("logins", schema=None) as batch_op:
        batch_op.add_column(sa.Column("key_hash", sa.String(length=64), nullable=False))
        batch_op.create_unique_constraint("uq_logins_key_hash", ["key_hash"])


def downgrade() -> None:
    _end_logins()  # otherwise their cookies would be valid without a key
    with op.batch_alter_table("logins", schema=None) as batch_op:
        batch_op.drop_constraint("uq_logins_key_hash", type_="unique")
        batch_op.drop_column("key_hash")


def _end_logins() -> None:
    op.execute("DELETE FROM tickets WHERE means LIKE 'cookie:%'")
    op.execute("DELETE FROM logins")
