"""Alembic runs this file. The caller has a connection open, with a transaction and a lock: see `migrate`."""

from alembic import context

from tbmq.storage.sql.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
