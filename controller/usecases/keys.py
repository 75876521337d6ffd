"""Keys: make one, list them, revoke one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from modelless.common.errors import NotFoundError
from modelless.controller.api.keys import Key, KeyRing, make_key
from modelless.controller.history.audit import note_act, user_name
from modelless.controller.live.key_file import change_keys, read_keys
from modelless.controller.usecases.home import Home, home_folder


def create_key(
    tenant: str,
    scopes: Sequence[str] = ("infer",),
    *,
    max_priority: int = 0,
    lasts_s: float | None = None,
    home: Home = None,
) -> tuple[Key, str]:
    """Make a key; a running cluster takes it within a second.

    With the first key of a home every request needs one, for good.

    Args:
        scopes: ``infer``, ``feedback``, ``operate`` and ``admin``, which is for all of them.
        max_priority: the highest that its bearer's queries may have, 0 to 9.
        lasts_s: seconds until it expires; None for never.

    Returns:
        The key, and its secret, which its bearer sends; it is shown this once.

    Raises:
        InvalidInputError: an argument is out of range.
        StoreError: the file of keys or the audit log cannot be written.
    """
    key, secret = make_key(tenant, scopes, max_priority, time.time(), lasts_s)
    folder = home_folder(home)
    note_act(
        folder, "key-create", user_name(), key=key.key_id, tenant=tenant, scopes=list(scopes),
        max_priority=max_priority, expires_at=key.expires_at,
    )  # fmt: skip

    def add(ring: KeyRing) -> tuple[Iterable[Key], None]:
        return (*ring.keys, key), None

    change_keys(folder, add)
    return key, secret


def list_keys(*, home: Home = None) -> tuple[Key, ...]:
    """All keys of a home, also those that were revoked or have expired."""
    return read_keys(home_folder(home)).keys


def revoke_key(key_id: str, *, home: Home = None) -> Key:
    """Revoke a key; a running cluster refuses it within a second.

    Raises:
        NotFoundError: there is no such key.
        StoreError: the file of keys or the audit log cannot be written.
    """
    folder = home_folder(home)
    note_act(folder, "key-revoke", user_name(), key=key_id)

    def revoke(ring: KeyRing) -> tuple[Iterable[Key], Key]:
        found = {key.key_id: key for key in ring.keys}
        if key_id not in found:
            raise NotFoundError(f"there is no key {key_id!r}: 'modelless key list' shows all")
        found[key_id] = found[key_id].revoked(time.time())
        return found.values(), found[key_id]

    return change_keys(folder, revoke)
