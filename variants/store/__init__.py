"""The SQL store: registry, profiles, device classes and history, in SQLite or PostgreSQL."""

from modelless.variants.store.database import Store, open_store
from modelless.variants.store.errors import StoreConflictError
from modelless.variants.store.tables import (
    ArtifactRow,
    DeviceClassRow,
    HistoryRow,
    MeasurementRow,
    ModelRow,
    PairRunRow,
    ProfileTableRow,
    SettingsRow,
    TaskRow,
    VariantRow,
    utc_now,
)

__all__ = [
    "ArtifactRow",
    "DeviceClassRow",
    "HistoryRow",
    "MeasurementRow",
    "ModelRow",
    "PairRunRow",
    "ProfileTableRow",
    "SettingsRow",
    "Store",
    "StoreConflictError",
    "TaskRow",
    "VariantRow",
    "open_store",
    "utc_now",
]
