"""Variants that were taken out of service."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column; whatever is there stays in service."""
    op.add_column("variants", sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True))
