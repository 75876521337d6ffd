"""Access to a gateway: keys, limits of tenants, and the tasks that they see."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from modelless.common.errors import NotFoundError
from modelless.controller.api.keys import (
    ForbiddenError,
    Key,
    KeyRing,
    UnauthorizedError,
    check_scope,
)
from modelless.controller.api.tenant_limits import TenantBooks
from modelless.controller.api.v2_headers import find_header
from modelless.controller.api.v2_reply import Headers
from modelless.controller.api.v2_routes import Endpoint
from modelless.controller.config import Settings, is_loopback
from modelless.controller.live.haproxy.configuration import OF_SOCKET, OPERATORS_HEADER
from modelless.policies.scopes import task_of

OPERATORS: Final = OPERATORS_HEADER.encode()

_SCOPES: Final = {
    Endpoint.INFER: "infer",
    Endpoint.MODEL_METADATA: "infer",
    Endpoint.MODEL_READY: "infer",
    Endpoint.MODEL_CONFIG: "infer",
    Endpoint.STATISTICS: "infer",
    Endpoint.REPOSITORY_INDEX: "infer",
    Endpoint.RECEIPT: "infer",
    Endpoint.QUOTE: "infer",
    Endpoint.BATCHES: "infer",
    Endpoint.BATCH: "infer",
    Endpoint.BATCH_CANCEL: "infer",
    Endpoint.FEEDBACK: "feedback",
    Endpoint.LOAD: "operate",
    Endpoint.UNLOAD: "operate",
    Endpoint.METRICS: "operate",
    Endpoint.STATUS: "operate",
    Endpoint.CONSOLE: "operate",
    Endpoint.CONSOLE_ACT: "operate",
}
"""What a request needs; what is not here is open to all: whether the server lives, and its name."""


_ACTS: Final = frozenset({Endpoint.LOAD, Endpoint.UNLOAD, Endpoint.CONSOLE_ACT})
"""What needs a key once there are any, on the operators' port, too."""


class Access:
    """Decides about requests.

    Args:
        settings: of the gateway.
        ring: returns the keys that count now.
        now: returns seconds since the epoch.
    """

    def __init__(
        self,
        settings: Settings,
        ring: Callable[[], KeyRing] = KeyRing,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.books = TenantBooks()
        self._ring = ring
        self._now = now
        self._has_one_port = settings.http.has_one_port
        self._may_be_open = is_loopback(settings.http.host) or settings.http.insecure
        self._hosts = {"localhost", settings.http.host, settings.http.operators_host}
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Go by these tenants and named limits from the next query on."""
        self.books.change(settings.tenants)
        self._slos = {name: slo.limits for name, slo in settings.slos.items()}
        self._own_slos = {
            name: {**self._slos, "": self._slos[tenant.slo]}
            for name, tenant in settings.tenants.items()
            if tenant.slo is not None
        }
        self._owners: dict[str, set[str]] = {}
        for name, tenant in settings.tenants.items():
            for task in tenant.private:
                self._owners.setdefault(task, set()).add(name)

    def check(self, endpoint: Endpoint, headers: Headers) -> Key | None:
        """Return the key of a request; None if it needs none.

        Raises:
            UnauthorizedError: it has no valid key, and needs one.
            ForbiddenError: its key is for something else.
        """
        scope = _SCOPES.get(endpoint)
        operator = operator_of(headers)
        ring = self._ring()
        is_open = endpoint not in _ACTS or not ring.is_needed
        if scope is None or operator == OF_SOCKET:
            return None
        if scope == "operate" and operator and is_open:
            self._check_host(headers)
            return None
        if not ring.is_needed:
            if not self._may_be_open:
                raise UnauthorizedError(
                    "authorization: this server has no keys yet, and answers other machines only "
                    "with one. 'modelless key create' makes a key."
                )
            if scope == "operate":
                if not self._has_one_port:
                    raise NotFoundError("no such path here: operators have a port of their own")
                self._check_host(headers)
            return None
        key = ring.find(headers, self._now())
        check_scope(key, scope)
        return key

    def _check_host(self, headers: Headers) -> None:
        """Refuse an operator's request without a key that names another host than this one.

        Else a web site whose name is made to resolve to this machine (DNS rebinding) could read the
        status in an operator's browser. Addresses and names without a dot are no such web site's.
        """
        given = find_header(headers, b"host")
        if given is None:  # no browser
            return
        asked = given.decode("latin-1")
        try:
            host = urlsplit(f"//{asked}").hostname or ""
            is_own = host in self._hosts or (host.isascii() and host.replace("-", "").isalnum())
            if not is_own:
                ip_address(host)
        except ValueError:
            raise ForbiddenError(
                f"Host: got {asked!r:.80}; allowed without a key: an address, a name without a "
                f"dot, {' or '.join(sorted(self._hosts))}. Use one of them, or send a key."
            ) from None

    def slos(self, key: Key | None) -> Mapping[str, Mapping[str, Any]]:
        """Return the limits that a request may name; under "" those of one that names none."""
        return self._own_slos.get(key.tenant, self._slos) if key is not None else self._slos

    def tenant_of(self, tenant: str | None, priority: int, key: Key | None) -> str:
        """Return the tenant of a query that names a tenant, or None, and a priority.

        Raises:
            ForbiddenError: it names another tenant than its key, or a higher priority than its key
                allows.
        """
        if key is None:
            return tenant or ""
        if tenant not in (None, key.tenant):
            raise ForbiddenError(
                f"tenant: got {tenant!r}; the key {key.key_id} is of tenant "
                f"{key.tenant!r}. Leave it out."
            )
        if priority > key.max_priority:
            raise ForbiddenError(
                f"priority: got {priority}; the key {key.key_id} allows up to {key.max_priority}."
            )
        return key.tenant

    def admit(self, tenant: str, key: Key | None, now_s: float) -> None:
        """Count a query that begins; OverloadedError if its tenant has used up what it may."""
        if key is not None:
            self.books.admit(tenant, now_s, self._now())

    def sees(self, scope: str, key: Key | None) -> bool:
        """Whether a task, or what is in it, is not another tenant's."""
        owners = self._owners.get(task_of(scope)) if self._owners else None
        return owners is None or (key is not None and (key.tenant in owners or key.is_admin))

    @property
    def has_private(self) -> bool:
        """Whether some tasks are not for all."""
        return bool(self._owners)


def operator_of(headers: Headers) -> str:
    """Return how an operator's request came in: ``OF_PORT``, ``OF_SOCKET``; empty for others'."""
    return (find_header(headers, OPERATORS) or b"").decode("latin-1")
