"""A cache of answers: a query whose inputs were answered before gets that answer, and nothing runs.

An answer is kept under a hash of the scope that was asked for, the tenant whose key asked, and the
inputs. So no tenant learns what another has asked. It holds as long as its variant, in that
version, is one that the scope stands for.

A query that is equal to one that runs waits for that one's answer, unless that could come later, or
be less accurate, than its own limits allow.
"""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.controller.api.v2_headers import RequestHeaders
from modelless.controller.api.v2_request import InferRequest
from modelless.controller.api.v2_tensors import to_binary
from modelless.controller.config import CacheSettings
from modelless.policies.scopes import in_scope
from modelless.policies.views import QueryView
from modelless.variants.registry.catalog import Scope
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.vocabulary import Variant

_OVERHEAD_BYTES: Final = 1024
"""What an answer takes beside its tensors."""


class CachedAnswer(NamedTuple):
    """The outputs of a query, by name, the variant that gave them, and what it counted for."""

    variant: Variant
    accuracy_percent: float
    outputs: Tensors
    size_bytes: int


class AnswerCache:
    """The answers of one gateway; the least recently used go first.

    Args:
        settings: whose answers are kept, and how many bytes of them.
    """

    def __init__(self, settings: CacheSettings) -> None:
        self._scopes = settings.scopes
        self._max_bytes = settings.max_bytes
        self._answers: OrderedDict[bytes, CachedAnswer] = OrderedDict()
        self._bytes = 0
        self._running: dict[bytes, QueryView] = {}
        self._waiting: dict[int, dict[int, None]] = {}  # by the id of the one that runs
        self._waits_for: dict[int, int] = {}

    def change(self, settings: CacheSettings) -> None:
        """Keep answers by other settings; those that are kept stay as far as there is room."""
        self._scopes, self._max_bytes = settings.scopes, settings.max_bytes
        while self._bytes > self._max_bytes:
            self._forget(next(iter(self._answers)))

    def owner_of(self, scope: Scope, tenant: str) -> str | None:
        """Return whose answers a query may get; None if answers for the scope are not kept.

        Args:
            scope: what the query asks for.
            tenant: that of its key; empty where there are no keys.
        """
        if not any(in_scope(scope.name, kept) for kept in self._scopes):
            return None
        return f"{scope.name} {tenant}"

    def find(self, key: bytes, scope: Scope, min_accuracy_percent: float) -> CachedAnswer | None:
        """Return the answer to a query, if a variant gave it that is now in scope and accurate."""
        found = self._answers.get(key)
        if found is None:
            return None
        if not any(found.variant is each for each in scope.variants):
            self._forget(key)  # else it would keep a less accurate one out
            return None
        if found.accuracy_percent < min_accuracy_percent:
            return None
        self._answers.move_to_end(key)
        return found

    def keep(self, key: bytes, variant: Variant, accuracy_percent: float, outputs: Tensors) -> None:
        """Keep the answer to a query, in the place of a less accurate one."""
        before = self._answers.get(key)
        if before is not None and before.accuracy_percent > accuracy_percent:
            return
        size_bytes = _OVERHEAD_BYTES + sum(map(_size_bytes, outputs.values()))
        if size_bytes > self._max_bytes:
            return
        self._forget(key)
        copies = {name: np.array(array) for name, array in outputs.items()}  # of a batch's outputs
        self._answers[key] = CachedAnswer(variant, accuracy_percent, copies, size_bytes)
        self._bytes += size_bytes
        while self._bytes > self._max_bytes:
            self._forget(next(iter(self._answers)))

    def join_run(self, key: bytes, query: QueryView, *, may_wait: bool) -> bool:
        """Return whether the query waits for the answer of an equal one; else others may for its.

        Args:
            key: of the query's answer.
            query: which is about to be dispatched.
            may_wait: whether another query's answer will do.
        """
        first = self._running.setdefault(key, query)
        if (
            first is query
            or not may_wait
            or first.deadline_s > query.deadline_s
            or first.serve_late > query.serve_late
            or first.priority < query.priority
            or first.min_accuracy_percent < query.min_accuracy_percent
        ):
            return False
        self._waiting.setdefault(first.query_id, {})[query.query_id] = None
        self._waits_for[query.query_id] = first.query_id
        return True

    def leave_run(self, query_id: int) -> int | None:
        """Note that a query does not wait any more; return the one for which no other waits now."""
        first = self._waits_for.pop(query_id, None)
        if first is None:
            return None
        del self._waiting[first][query_id]
        if self._waiting[first]:
            return None
        del self._waiting[first]
        return first

    def end_run(self, key: bytes, query_id: int) -> list[int]:
        """Return the queries that wait for this one, which is over."""
        first = self._running.get(key)
        if first is not None and first.query_id == query_id:
            del self._running[key]
        waiting = list(self._waiting.pop(query_id, ()))
        for each in waiting:
            del self._waits_for[each]
        return waiting

    def is_awaited(self, query_id: int) -> bool:
        """Return whether others wait for a query's answer."""
        return query_id in self._waiting

    def clear(self) -> None:
        """Forget all answers; nothing joins what runs now."""
        self._answers.clear()
        self._running.clear()
        self._bytes = 0

    def _forget(self, key: bytes) -> None:
        gone = self._answers.pop(key, None)
        if gone is not None:
            self._bytes -= gone.size_bytes


def key_of(
    owner: str | None, said: RequestHeaders, request: InferRequest, inputs: Tensors
) -> bytes | None:
    """Return the key of a query's answer; None if the answer is not to be kept.

    Args:
        owner: see ``AnswerCache.owner_of``.
        said, request: what the query says of caches.
        inputs: as the variants take them.
    """
    if owner is None or "no-store" in {*said.cache_control, request.cache_control}:
        return None
    digest = hashlib.sha256(owner.encode())
    for name, array in inputs.items():
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        raw = to_binary(array)
        digest.update(raw if isinstance(raw, bytes) else raw.data)
    return digest.digest()


def is_reusable(said: RequestHeaders, request: InferRequest) -> bool:
    """Whether an earlier answer will do for a query."""
    return "no-cache" not in {*said.cache_control, request.cache_control}


def _size_bytes(array: NDArray[Any]) -> int:
    elements = sum(map(sys.getsizeof, array.flat)) if array.dtype.hasobject else 0
    return array.nbytes + elements
