"""The first schema: tasks, models, variants, artifacts, measurements, device classes, history."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0001"
down_revision = None

_TIME = sa.DateTime(timezone=True)
_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _column(name: str, kind: TypeEngine[Any], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "tasks",
        _column("name", sa.String()),
        _column("inputs", sa.JSON()),
        _column("outputs", sa.JSON()),
        _column("accuracy_metric", sa.String()),
        _column("description", sa.String()),
        _column("labels", sa.JSON()),
        _column("added_at", _TIME),
        sa.PrimaryKeyConstraint("name", name="pk_tasks"),
    )
    op.create_table(
        "models",
        _column("task", sa.String()),
        _column("name", sa.String()),
        _column("family", sa.String()),
        _column("source", sa.String()),
        _column("licence", sa.String()),
        _column("added_at", _TIME),
        sa.PrimaryKeyConstraint("task", "name", name="pk_models"),
        sa.ForeignKeyConstraint(["task"], ["tasks.name"], name="fk_models_tasks"),
    )
    op.create_table(
        "artifacts",
        _column("sha256", sa.String(64)),
        _column("bytes", _WHOLE),
        _column("added_at", _TIME),
        sa.PrimaryKeyConstraint("sha256", name="pk_artifacts"),
    )
    op.create_table(
        "variants",
        _column("id", sa.String()),
        _column("task", sa.String()),
        _column("model", sa.String()),
        _column("name", sa.String()),
        _column("version", _WHOLE),
        _column("precision", sa.String()),
        _column("resolution_px", _WHOLE, null=True),
        _column("engine", sa.String()),
        _column("artifact_sha256", sa.String(64)),
        _column("accuracy_percent", sa.Double()),
        _column("accuracy_metric", sa.String()),
        _column("accuracy_provenance", sa.String()),
        _column("accuracy_source", sa.String()),
        _column("accuracy_low_percent", sa.Double(), null=True),
        _column("accuracy_high_percent", sa.Double(), null=True),
        _column("accuracy_sample_count", _WHOLE, null=True),
        _column("parameter_count", _WHOLE, null=True),
        _column("multiply_adds", _WHOLE, null=True),
        _column("added_at", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_variants"),
        sa.UniqueConstraint(
            "task", "model", "name", "version", name="uq_variants_task_model_name_version"
        ),
        sa.ForeignKeyConstraint(
            ["task", "model"], ["models.task", "models.name"], name="fk_variants_models"
        ),
        sa.ForeignKeyConstraint(
            ["artifact_sha256"], ["artifacts.sha256"], name="fk_variants_artifacts"
        ),
    )
    op.create_table(
        "measurements",
        _column("id", _WHOLE),
        _column("variant_id", sa.String()),
        _column("device_class", sa.String()),
        _column("batch", _WHOLE),
        _column("threads", _WHOLE),
        _column("engine", sa.String()),
        _column("device_name", sa.String()),
        _column("repeats", _WHOLE),
        _column("p50_s", sa.Double()),
        _column("p90_s", sa.Double()),
        _column("p99_s", sa.Double()),
        _column("mean_s", sa.Double()),
        _column("throughput_per_s", sa.Double()),
        _column("memory_bytes", _WHOLE),
        _column("load_s", sa.Double()),
        _column("trusted", sa.Boolean()),
        _column("noise", sa.Double()),
        _column("measured_at", _TIME),
        _column("fingerprint", sa.String()),
        sa.PrimaryKeyConstraint("id", name="pk_measurements"),
        sa.UniqueConstraint(
            "variant_id",
            "device_class",
            "batch",
            "fingerprint",
            name="uq_measurements_variant_id_device_class_batch_fingerprint",
        ),
    )
    op.create_table(
        "device_classes",
        _column("name", sa.String()),
        _column("kind", sa.String()),
        _column("threads", _WHOLE),
        _column("memory_bytes", _WHOLE),
        _column("price_usd_per_hour", sa.Double()),
        _column("power_w", sa.Double()),
        _column("facts", sa.JSON()),
        _column("added_at", _TIME),
        sa.PrimaryKeyConstraint("name", name="pk_device_classes"),
    )
    op.create_table(
        "history",
        _column("id", _WHOLE),
        _column("at", _TIME),
        _column("kind", sa.String()),
        _column("subject", sa.String()),
        _column("reason", sa.String()),
        _column("details", sa.JSON()),
        sa.PrimaryKeyConstraint("id", name="pk_history"),
    )
    op.create_index("ix_history_at", "history", ["at"])
    op.create_table(
        "schema_versions",
        _column("revision", sa.String()),
        _column("modelless_version", sa.String()),
        _column("applied_at", _TIME),
        sa.PrimaryKeyConstraint("revision", name="pk_schema_versions"),
    )
