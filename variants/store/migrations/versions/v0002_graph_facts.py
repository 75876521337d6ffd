"""Variants carry the facts of their graphs; absent from those that were registered before."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column, empty."""
    op.add_column("variants", sa.Column("graph_facts", sa.JSON(), nullable=True))
