"""The names that requests may have, and what the protocol tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from modelless.common.errors import NotFoundError
from modelless.controller.api import v2_metadata as metadata
from modelless.controller.api.keys import Key
from modelless.controller.api.openapi import openapi
from modelless.controller.api.v2_errors import MethodNotAllowedError, NoSuchPathError
from modelless.controller.api.v2_reply import Reply, render_json
from modelless.controller.api.v2_routes import Endpoint, Route
from modelless.controller.control.served_versions import Service
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.live.front.access import Access
from modelless.controller.live.front.interfaces import Host
from modelless.controller.live.servable import Servable
from modelless.variants.registry.catalog import Catalog, Scope

_T = TypeVar("_T")
_MOST_SCOPES = 4096
"""Names whose meaning is remembered."""


def _not_found(found: Route) -> NotFoundError:
    return NotFoundError(
        f"there is no task {found.name!r:.130}, or no version of it that you asked for, for you. "
        "POST /v2/repository/index lists the tasks"
    )


class Names:
    """What requests may name: tasks, models and variants in service, and what is told of them.

    Args:
        catalog, servable: see ``V2Frontend``.
        access: who may see which tasks.
        dispatcher: knows what is loaded.
        host: tells how the process and the cluster are.
    """

    def __init__(
        self,
        catalog: Catalog,
        servable: Servable,
        access: Access,
        dispatcher: Dispatcher,
        host: Host,
    ) -> None:
        self.servable = servable
        self._catalog, self._access = catalog, access
        self._dispatcher, self._host = dispatcher, host
        self._service = Service()
        self._awaited = catalog.tasks.keys() - servable.not_served.keys()
        self._scopes: dict[tuple[str, str | None], Scope] = {}

    def serve(self, service: Service, catalog: Catalog) -> None:
        """Set the versions in service, and the catalog."""
        self._service, self._catalog = service, catalog
        self._scopes.clear()

    def resolve(self, found: Route, key: Key | None) -> Scope:
        """Return what a request names.

        Raises:
            NotFoundError: there is none, or it is another tenant's: the error is the same.
        """
        asked = (found.name, found.version)
        scope = self._scopes.get(asked)
        if scope is None:
            try:
                scope = self._look_up(*asked)
            except NotFoundError:
                if self._access.has_private:  # what was probably meant may be another's
                    raise _not_found(found) from None
                raise
            if len(self._scopes) < _MOST_SCOPES:
                self._scopes[asked] = scope
        if not self._access.sees(scope.name, key):
            raise _not_found(found)
        return scope

    def _look_up(self, name: str, version: str | None) -> Scope:
        if version is not None and name.count("/") < 2:
            if version != "1":  # of the interface: all that a task or model has
                raise NotFoundError(
                    f"No version of {name!r} is called {version!r}. There is: 1. "
                    "Variants have versions: name task/model/variant."
                )
            version = None
        scope = self._catalog.resolve(name, version)
        if "@" in scope.name:
            self._service.check(scope.name)
        return scope

    def find_served(self, found: Route, key: Key | None) -> Scope:
        """Return what a query names, if it can be served."""
        scope = self.resolve(found, key)
        if not self._is_served(scope.name):
            self.servable.check(scope)
        return scope

    @property
    def are_served(self) -> bool:
        """Whether every servable task has a ready variant.

        Tasks that came later do not count: while they are loaded, the others are served.
        """
        wanted = self._awaited & self._catalog.tasks.keys() - self.servable.not_served.keys()
        return all(self._is_served(name) for name in wanted)

    def describe(
        self, found: Route, method: str, path: bytes, key: Key | None, *, is_ready: bool
    ) -> Reply:
        """Return the answer to a request that only asks what there is.

        Args:
            is_ready: what a request for readiness is told.
        """
        endpoint = found.endpoint
        if endpoint is Endpoint.SERVER_METADATA:
            return metadata.server_metadata()
        if endpoint is Endpoint.OPENAPI:
            return openapi()
        if endpoint is Endpoint.HEALTH_LIVE:
            return metadata.server_live(self._health_problem())
        if endpoint is Endpoint.HEALTH_READY:
            not_served = self._visible(self.servable.not_served, None)
            return metadata.server_ready(is_ready, not_served)
        if endpoint is Endpoint.METHOD_NOT_ALLOWED:
            raise MethodNotAllowedError(method, found.allow)
        if endpoint is Endpoint.REPOSITORY_INDEX:
            return metadata.repository_index(
                (name, self._is_served(name), self.servable.not_served.get(name, ""))
                for name in self._visible(self._catalog.tasks, key)
            )
        if endpoint is Endpoint.NOT_FOUND:
            raise NoSuchPathError(path)
        if endpoint is Endpoint.STATUS:
            return render_json(dict(self._host.status()))
        if endpoint is Endpoint.STATISTICS and not found.name:
            names = [(name, "1", name) for name in self._visible(self._catalog.tasks, key)]
            return metadata.model_statistics(names, self._host.status().get("statistics", {}))
        scope = self.resolve(found, key)
        if endpoint is Endpoint.STATISTICS:
            version = found.version or ("" if scope.name.count("/") == 2 else "1")
            named = [(found.name, version, scope.name)]
            return metadata.model_statistics(named, self._host.status().get("statistics", {}))
        if endpoint is Endpoint.MODEL_READY:
            problem = self.servable.problem(scope)
            return metadata.model_ready(found.name, self._is_served(scope.name), problem)
        if endpoint is Endpoint.MODEL_CONFIG:
            return metadata.model_config(found.name, scope.task, self._dispatcher.limits.max_batch)
        narrowed = scope.name.count("/") == 2
        versions = [str(variant.version) for variant in scope.variants] if narrowed else ["1"]
        return metadata.model_metadata(found.name, scope.task, versions)

    def _visible(self, tasks: Mapping[str, _T], key: Key | None) -> dict[str, _T]:
        return {name: each for name, each in tasks.items() if self._access.sees(name, key)}

    def _health_problem(self) -> str:
        try:
            self._host.check_health()
        except RuntimeError as error:
            return str(error)
        return ""

    def _is_served(self, scope: str) -> bool:
        return self._dispatcher.instances.is_served(scope)
