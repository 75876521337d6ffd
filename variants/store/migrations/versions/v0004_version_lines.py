"""Version lines: which version of a variant is current, which were before, which is on trial."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0004"
down_revision = "0003"

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _column(name: str, kind: TypeEngine[Any], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "version_lines",
        _column("name", sa.String()),
        _column("current", _WHOLE),
        _column("earlier", sa.JSON()),
        _column("trial", sa.JSON(), null=True),
        _column("evidence", sa.JSON(), null=True),
        _column("number", _WHOLE),
        _column("changed_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("name", name="pk_version_lines"),
    )
    op.create_index("ix_version_lines_number", "version_lines", ["number"], unique=True)
