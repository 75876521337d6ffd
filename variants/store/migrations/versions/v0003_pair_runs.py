"""Pair runs: what placements cost each other when they run on one host together."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0003"
down_revision = "0002"

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _column(name: str, kind: TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "pair_runs",
        _column("id", _WHOLE),
        _column("variant_id", sa.String()),
        _column("device_class", sa.String()),
        _column("kind", sa.String()),
        _column("neighbour_variant_id", sa.String()),
        _column("neighbour_device_class", sa.String()),
        _column("neighbour_kind", sa.String()),
        _column("alone_s", sa.Double()),
        _column("beside_s", sa.Double()),
        _column("repeats", _WHOLE),
        _column("trusted", sa.Boolean()),
        _column("measured_at", sa.DateTime(timezone=True)),
        _column("fingerprint", sa.String()),
        sa.PrimaryKeyConstraint("id", name="pk_pair_runs"),
    )
    op.create_index("ix_pair_runs_fingerprint", "pair_runs", ["fingerprint"])
