"""The SQL store: registry, profiles, device classes and history, in SQLite or PostgreSQL."""

from modelless.variants.store.database import Store, open_store
from modelless.variants.store.errors import StoreConflictError
from modelless.variants.store.tables import (
    ArtifactRow,
    Base,
    DeviceClassRow,
    HistoryRow,
    MeasurementRow,
    ModelRow,
    PairRunRow,
    ProfileTableRow,
    SchemaVersionRow,
    SettingsRow,
    TaskRow,
    UtcDateTime,
    VariantRow,
    VersionLineRow,
    utc_now,
)

__all__ = [
    "ArtifactRow",
    "Base",
    "DeviceClassRow",
    "HistoryRow",
    "MeasurementRow",
    "ModelRow",
    "PairRunRow",
    "ProfileTableRow",
    "SchemaVersionRow",
    "SettingsRow",
    "Store",
    "StoreConflictError",
    "TaskRow",
    "UtcDateTime",
    "VariantRow",
    "VersionLineRow",
    "open_store",
    "utc_now",
]
