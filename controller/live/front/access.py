"""Access to a gateway: keys, limits of tenants, and the tasks that they see."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
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

_NOWHERE: Final = (Endpoint.NOT_FOUND, Endpoint.METHOD_NOT_ALLOWED)

_ACTS: Final = frozenset({Endpoint.LOAD, Endpoint.UNLOAD, Endpoint.CONSOLE_ACT})
"""What needs a key once there are any, on the operators' port, too."""

_POSTED: Final = _ACTS | {
    Endpoint.INFER,
    Endpoint.QUOTE,
    Endpoint.FEEDBACK,
    Endpoint.BATCHES,
    Endpoint.BATCH_CANCEL,
    Endpoint.REPOSITORY_INDEX,
}
"""What no link leads to: a browser that another site tells to send it is refused."""


_NOBODYS: Final = (".localhost", ".internal")
"""Names that no web site can have (RFC 6761; ICANN 2024), such as ``host.docker.internal``."""


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
        self._is_insecure = settings.http.insecure
        self._hosts = {"localhost", settings.http.host, settings.http.operators_host}
        self._is_own = lru_cache(maxsize=256)(self._is_own_host)
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
            self._check_browser(endpoint, headers, any_host=False)
            return None
        if not ring.is_needed:
            if not self._may_be_open:
                raise UnauthorizedError(
                    "authorization: this server has no keys yet, and answers other machines only "
                    "with one. 'modelless key create' makes a key."
                )
            if scope == "operate" and not self._has_one_port:
                raise NotFoundError("no such path here: operators have a port of their own")
            any_host = self._is_insecure and scope != "operate"
            self._check_browser(endpoint, headers, any_host=any_host)
            return None
        key = ring.find(headers, self._now())
        check_scope(key, scope)
        return key

    @property
    def needs_keys(self) -> bool:
        """Whether there are keys."""
        return self._ring().is_needed

    def check_sender(self, endpoint: Endpoint, headers: Headers) -> None:
        """Refuse a request whose body is still to come if its endpoint needs a key that is not
        there."""
        if endpoint in _SCOPES:
            self.check(endpoint, headers)
        elif endpoint in _NOWHERE and operator_of(headers) != OF_SOCKET:
            self._ring().find(headers, self._now())

    def _check_browser(self, endpoint: Endpoint, headers: Headers, *, any_host: bool) -> None:
        """Refuse, of requests without a key, those that a web site makes in somebody's browser.

        A site whose name is made to resolve to this machine (DNS rebinding) could read the answer:
        its ``Host`` is not this server's. Addresses and names without a dot are no such web site's.
        Any other site could act, though not read: a browser sends its ``Origin`` with a POST, and
        tells whether that is the page's own site.
        """
        told = dict(headers)
        host, origin = told.get(b"host"), told.get(b"origin")
        if host is not None and not any_host and not self._is_own(host):  # None: no browser
            raise ForbiddenError(
                f"Host: got {host.decode('latin-1')!r:.80}; allowed without a key: an address, a "
                f"name without a dot, {' or '.join(sorted(self._hosts))}. Use one of them, or send "
                "a key."
            )
        site = told.get(b"sec-fetch-site")
        is_foreign = origin is not None and origin.partition(b"://")[2] != host
        is_foreign = site == b"cross-site" or (is_foreign and site != b"same-origin")
        if is_foreign and endpoint in _POSTED:
            given = (origin or b"").decode("latin-1")
            raise ForbiddenError(
                f"Origin: got {given!r:.80}; allowed without a key: this server's own, or none. "
                "Send a key."
            )

    def _is_own_host(self, given: bytes) -> bool:
        asked = given.decode("latin-1")
        try:
            host = (urlsplit(f"//{asked}").hostname or "").removesuffix(".")
            has_no_dot = host.isascii() and host.replace("-", "").replace("_", "").isalnum()
            if host not in self._hosts and not has_no_dot and not host.endswith(_NOBODYS):
                ip_address(host)
        except ValueError:
            return False
        return True

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

    def admit(self, key: Key | None, now_s: float, *, again: bool = False) -> None:
        """Count a query that begins; OverloadedError if its tenant has used up what it may.

        ``again``: see ``TenantBooks.admit``.
        """
        if key is not None:
            self.books.admit(key.tenant, now_s, self._now(), again=again)

    def close(self, key: Key | None) -> None:
        """Count the end of a query that was admitted and cost nothing."""
        if key is not None:
            self.books.close(key.tenant)

    def charge(self, tenant: str, cost_usd: float) -> None:
        """Count what a query cost that was closed before it had run."""
        if self.needs_keys:
            self.books.charge(tenant, cost_usd)

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
