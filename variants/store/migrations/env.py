"""Alembic's entry: run the revisions on the connection and in the transaction it is handed."""

from alembic import context

from modelless.variants.store.schema import VERSION_TABLE
from modelless.variants.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
