"""The store's tables, as typed rows. Times are UTC; a change here needs a migration beside it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    String,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


def utc_now() -> datetime:
    """The time, as rows keep it."""
    return datetime.now(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time: with a time zone in Python, UTC in the database whatever its engine."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC; ValueError for a time without a zone, whose meaning would be a guess."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone: use datetime.now(UTC)")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(
        self,
        value: datetime | None,
        dialect: Dialect,  # noqa: ARG002 (the signature is SQLAlchemy's)
    ) -> datetime | None:
        """From the database, always with UTC as its zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Base of all rows. Constraints are named so that a later migration can address them."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(referred_table_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads it from the class)
        # 64 bits everywhere; SQLite's integers are, and only INTEGER numbers its rows by itself.
        int: BigInteger().with_variant(Integer(), "sqlite"),
        float: Double(),
        str: String(),
        datetime: UtcDateTime(),
        dict[str, Any]: JSON(),
        list[Any]: JSON(),
    }


class TaskRow(Base):
    """A ``vocabulary.Task``. ``inputs`` and ``outputs`` are lists of {name, datatype, shape}."""

    __tablename__ = "tasks"

    name: Mapped[str] = mapped_column(primary_key=True)
    inputs: Mapped[list[Any]]
    outputs: Mapped[list[Any]]
    accuracy_metric: Mapped[str]
    description: Mapped[str]
    labels: Mapped[list[Any]]
    decoding: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    added_at: Mapped[datetime] = mapped_column(default=utc_now)


class ModelRow(Base):
    """A ``vocabulary.Model``."""

    __tablename__ = "models"

    task: Mapped[str] = mapped_column(ForeignKey("tasks.name"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    family: Mapped[str]
    source: Mapped[str]
    licence: Mapped[str]
    added_at: Mapped[datetime] = mapped_column(default=utc_now)


class ArtifactRow(Base):
    """A content-addressed file; the bytes themselves lie in the artifact store."""

    __tablename__ = "artifacts"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    bytes: Mapped[int]
    added_at: Mapped[datetime] = mapped_column(default=utc_now)


class VariantRow(Base):
    """A ``vocabulary.Variant``: a row a version, written once; only its accuracy may be revised."""

    __tablename__ = "variants"
    __table_args__ = (
        UniqueConstraint("task", "model", "name", "version"),
        ForeignKeyConstraint(["task", "model"], ["models.task", "models.name"]),
    )

    id: Mapped[str] = mapped_column(primary_key=True)  # task/model/name@version
    task: Mapped[str]
    model: Mapped[str]
    name: Mapped[str]
    version: Mapped[int]
    precision: Mapped[str]
    resolution_px: Mapped[int | None]
    engine: Mapped[str]
    artifact_sha256: Mapped[str] = mapped_column(ForeignKey("artifacts.sha256"))
    accuracy_percent: Mapped[float]
    accuracy_metric: Mapped[str]
    accuracy_provenance: Mapped[str]
    accuracy_source: Mapped[str]
    accuracy_low_percent: Mapped[float | None]
    accuracy_high_percent: Mapped[float | None]
    accuracy_sample_count: Mapped[int | None]
    parameter_count: Mapped[int | None]
    multiply_adds: Mapped[int | None]
    # A ``graph_facts.GraphFacts``; deferred, because catalogs are read often and need none of it.
    graph_facts: Mapped[dict[str, Any] | None] = mapped_column(
        JSON(none_as_null=True), deferred=True
    )
    added_at: Mapped[datetime] = mapped_column(default=utc_now)
    retired_at: Mapped[datetime | None]

    artifact: Mapped[ArtifactRow] = relationship(lazy="joined", innerjoin=True)


class MeasurementRow(Base):
    """A placement measured at one batch size, with items of one size, on one machine.

    ``variant_id`` and ``device_class`` are not foreign keys: profiles can be brought in from a file
    before the variants they speak of, and outlive them.
    """

    __tablename__ = "measurements"
    __table_args__ = (
        UniqueConstraint("variant_id", "device_class", "batch", "shape", "fingerprint"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    variant_id: Mapped[str]
    device_class: Mapped[str]
    batch: Mapped[int]
    threads: Mapped[int]
    engine: Mapped[str]
    device_name: Mapped[str]
    repeats: Mapped[int]
    p50_s: Mapped[float]
    p90_s: Mapped[float]
    p99_s: Mapped[float]
    mean_s: Mapped[float]
    throughput_per_s: Mapped[float]
    memory_bytes: Mapped[int]
    load_s: Mapped[float]
    trusted: Mapped[bool]
    noise: Mapped[float]
    measured_at: Mapped[datetime]
    fingerprint: Mapped[str]
    shape: Mapped[str]
    is_typical: Mapped[bool]


class PairRunRow(Base):
    """A ``slowdowns.PairRun``: a placement measured alone and beside a neighbour on one machine.

    As in ``MeasurementRow`` nothing refers to the variants.
    """

    __tablename__ = "pair_runs"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    variant_id: Mapped[str]
    device_class: Mapped[str]
    kind: Mapped[str]
    neighbour_variant_id: Mapped[str]
    neighbour_device_class: Mapped[str]
    neighbour_kind: Mapped[str]
    alone_s: Mapped[float]
    beside_s: Mapped[float]
    repeats: Mapped[int]
    trusted: Mapped[bool]
    measured_at: Mapped[datetime]
    fingerprint: Mapped[str] = mapped_column(index=True)


class ProfileTableRow(Base):
    """A table of profiles from elsewhere. ``content`` has its ``columns`` and its ``rows``."""

    __tablename__ = "profile_tables"

    name: Mapped[str] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)  # of the content
    row_count: Mapped[int]
    devices: Mapped[list[Any]]
    content: Mapped[dict[str, Any]] = mapped_column(deferred=True)
    added_at: Mapped[datetime] = mapped_column(default=utc_now)


class DeviceClassRow(Base):
    """A ``vocabulary.DeviceClass`` and the facts found about the machine that has it."""

    __tablename__ = "device_classes"

    name: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    threads: Mapped[int]
    memory_bytes: Mapped[int]
    price_usd_per_hour: Mapped[float]
    power_w: Mapped[float]
    facts: Mapped[dict[str, Any]]
    added_at: Mapped[datetime] = mapped_column(default=utc_now)


class VersionLineRow(Base):
    """A ``versions.Line`` that somebody changed; of a variant without one, the first is current.

    ``name`` is ``task/model/variant``; ``number`` grows with every change to any line;
    ``evidence`` is what is known of the trial so far, for a control loop that is started anew.
    """

    __tablename__ = "version_lines"

    name: Mapped[str] = mapped_column(primary_key=True)
    current: Mapped[int]
    earlier: Mapped[list[Any]]
    trial: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    evidence: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True), deferred=True)
    number: Mapped[int] = mapped_column(index=True, unique=True)
    changed_at: Mapped[datetime] = mapped_column(default=utc_now)


class HistoryRow(Base):
    """Something that was decided or changed, and why."""

    __tablename__ = "history"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    kind: Mapped[str]
    subject: Mapped[str]
    reason: Mapped[str]
    details: Mapped[dict[str, Any]]


class LeaseRow(Base):
    """Which control plane works with the store; ``leases.py`` says how it is held."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    shown: Mapped[str]
    since: Mapped[datetime]
    expires_at: Mapped[datetime]


class SettingsRow(Base):
    """A revision of the settings: all that differ from those of revision 0, by dotted key.

    Revision 0 has the settings that modelless was started with, as a document.
    """

    __tablename__ = "settings"

    revision: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime] = mapped_column(default=utc_now)
    who: Mapped[str]
    reason: Mapped[str]
    changes: Mapped[dict[str, Any]]


class SchemaVersionRow(Base):
    """The version of modelless that brought the store to each schema."""

    __tablename__ = "schema_versions"

    revision: Mapped[str] = mapped_column(primary_key=True)
    modelless_version: Mapped[str]
    applied_at: Mapped[datetime] = mapped_column(default=utc_now)
