"""Record the token that was used to sign in, so that the login ends with it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("logins", schema=None) as batch_op:
        batch_op.add_column(sa.Column("token_id", sa.String(length=40), nullable=True))
        batch_op.create_foreign_key(
            "fk_logins_token_id_api_tokens", "api_tokens", ["token_id"], ["id"], ondelete="CASCADE"
        )
        batch_op.create_index("ix_logins_token_id", ["token_id"])


def downgrade() -> None:
    with op.batch_alter_table("logins", schema=None) as batch_op:
        batch_op.drop_index("ix_logins_token_id")
        batch_op.drop_constraint("fk_logins_token_id_api_tokens", type_="foreignkey")
        batch_op.drop_column("token_id")
