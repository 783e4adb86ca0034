"""Alembic runs this for every command. The connection and its transaction come from `db.migrate`."""

from alembic import context

from sandyard.platform.db.migrate import OPTIONS

context.configure(connection=context.config.attributes["connection"], **OPTIONS)
with context.begin_transaction():
    context.run_migrations()
