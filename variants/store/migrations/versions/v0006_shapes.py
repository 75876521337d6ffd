"""Measurements of several sizes of an item."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_BEFORE = ["variant_id", "device_class", "batch", "fingerprint"]
_NOW = ["variant_id", "device_class", "batch", "shape", "fingerprint"]


def upgrade() -> None:
    """Add the columns; what is there was measured at the one size that it was."""
    with op.batch_alter_table("measurements") as table:
        table.add_column(sa.Column("shape", sa.String(), nullable=False, server_default=""))
        table.add_column(
            sa.Column("is_typical", sa.Boolean(), nullable=False, server_default=sa.true())
        )
        table.drop_constraint(f"uq_measurements_{'_'.join(_BEFORE)}", type_="unique")
        table.create_unique_constraint(f"uq_measurements_{'_'.join(_NOW)}", _NOW)
