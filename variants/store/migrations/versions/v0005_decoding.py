"""How a task's output is read as a text."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column; the tasks that are there answer with no texts."""
    op.add_column("tasks", sa.Column("decoding", sa.JSON(), nullable=True))
