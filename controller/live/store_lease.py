"""The lease by which a home's control plane has the store for itself."""

from __future__ import annotations

import platform
import secrets
from contextlib import closing
from pathlib import Path

from modelless.common.files import write_whole
from modelless.controller.history.audit import user_name
from modelless.variants.registry.registry import open_registry
from modelless.variants.store.leases import end_lease, take_lease


def hold_store(home: Path) -> None:
    """Take or renew the home's lease on its store.

    Raises:
        EnvironmentUnfitError: the control plane of another home holds it.
        StoreError: the store or the home cannot be written.
    """
    with closing(open_registry(home)) as registry:
        shown = f"home {home}, user {user_name()}, host {platform.node()}"
        take_lease(registry.store, _home_id(home), shown)


def leave_store(home: Path) -> None:
    """End the home's lease, if it has it. StoreError if the store cannot be written."""
    with closing(open_registry(home)) as registry:
        end_lease(registry.store, _home_id(home))


def _home_id(home: Path) -> str:
    """What tells the home from all others: its path does not, on another machine."""
    file = home / "home-id"
    if not file.exists():
        write_whole(file, secrets.token_hex(16).encode(), mode=0o600)
    return file.read_text()
