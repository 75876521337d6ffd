"""Answers by idempotency key: a query that is sent again gets the answer of the first one.

Clients send again when a connection breaks, and cannot know whether the query ran. HAProxy sends
all queries of a key to one gateway (``haproxy/configuration``), so what it remembers suffices.
Source: https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from modelless.controller.api.v2_errors import invalid
from modelless.controller.api.v2_reply import Reply
from modelless.controller.live.front.interfaces import Respond

IDEMPOTENCY_KEY: Final = b"idempotency-key"
REPLAYED: Final = (b"idempotent-replayed", b"true")
"""A header of an answer that was given before."""

KEPT_S: Final = 60.0
MOST_BYTES: Final = 16 << 20
MOST_KEYS: Final = 16_384
_OVERHEAD_BYTES: Final = 1024
"""What an answer takes beside its body."""
_JOINED: Final = 1 << 62
"""Numbers from here on are those of requests that wait for another one's answer."""
_KEY: Final = re.compile(rb"[\x21-\x7e]{1,128}")

Name = tuple[str, bytes]
"""The tenant, and the key: two tenants may use keys of the same text."""


class _Kept(NamedTuple):
    query: tuple[bytes, int]
    reply: Reply
    until_s: float


@dataclass(slots=True)
class _Running:
    query: tuple[bytes, int]
    responds: dict[int, Respond]  # by the number of who waits; 0 for the first
    number: int | None = None


class KeptAnswers:
    """The answers of queries that have an idempotency key, and those queries that are open.

    Args:
        clock: returns seconds.
        most_bytes: that the answers may take; the oldest are forgotten.
    """

    def __init__(self, clock: Callable[[], float], most_bytes: int = MOST_BYTES) -> None:
        self._clock = clock
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Name, _Kept] = OrderedDict()
        self._bytes = 0
        self._running: dict[Name, _Running] = {}
        self._names: dict[int, Name] = {}
        self._last_joined = _JOINED

    def once(
        self,
        key: bytes,
        owner: str,
        query: tuple[bytes, int],
        respond: Respond,
        run: Callable[[Respond], int | None],
    ) -> int | None:
        """Run a query, unless one with its key has been answered or runs: then answer as that one.

        Args:
            key: the idempotency key of the request.
            owner: who asks.
            query: the path and the size of the body: a key may not come with another query.
            respond: takes the answer.
            run: runs the query; takes what takes the answer, and returns a number to cancel it by.

        Returns:
            The number; None if there is nothing to cancel.

        Raises:
            InvalidInputError: the key is malformed, or another query had it.
        """
        if not _KEY.fullmatch(key):
            shown = key.decode("latin-1")
            raise invalid("idempotency-key", shown, "1 to 128 printable ASCII characters")
        name = (owner, key)
        self._forget_old()
        earlier = self._kept.get(name) or self._running.get(name)
        if earlier is None:
            self._running[name] = running = _Running(query, {0: respond})
            number = run(lambda reply: self._answer(name, reply))
            if number is not None and self._running.get(name) is running:
                running.number = number
                self._names[number] = name
            return number
        if earlier.query != query:
            raise invalid("idempotency-key", key.decode(), "a new key for another query")
        if isinstance(earlier, _Running):
            self._last_joined += 1
            earlier.responds[self._last_joined] = respond
            self._names[self._last_joined] = name
            return self._last_joined
        kept = earlier.reply
        respond(Reply(kept.status, kept.body, [*kept.headers, REPLAYED]))
        return None

    def leave(self, number: int) -> int | None:
        """Note that a client went away, and so do not answer it.

        Args:
            number: see ``once``.

        Returns:
            The number of the query; None if others wait for it by its key.
        """
        name = self._names.get(number)
        if name is None:
            return number
        running = self._running[name]
        if number > _JOINED:
            del self._names[number]
        running.responds.pop(number if number > _JOINED else 0, None)
        return running.number if not running.responds else None

    def may_cancel(self, number: int, *, is_running: bool) -> bool:
        """Return whether a query may be cancelled whose client went away, and then forget its key.

        One that runs may not: the client may ask for its answer. Nor may one that another request
        waits for.

        Args:
            number: see ``once``.
            is_running: whether a device runs it.
        """
        name = self._names.get(number)
        if name is None:
            return True
        if is_running or self._running[name].responds:
            return False
        del self._names[number], self._running[name]
        return True

    def _answer(self, name: Name, reply: Reply) -> None:
        running = self._running.pop(name, None)
        if running is None:
            return
        for number in (running.number, *running.responds):
            if number is not None:
                self._names.pop(number, None)
        size_bytes = _size_bytes(reply)
        if reply.status == 200 and size_bytes <= self._most_bytes:
            self._bytes += size_bytes
            self._kept[name] = _Kept(running.query, reply, self._clock() + KEPT_S)
            while self._bytes > self._most_bytes or len(self._kept) > MOST_KEYS:
                self._forget_oldest()
        again = Reply(reply.status, reply.body, [*reply.headers, REPLAYED])
        for number, respond in running.responds.items():
            respond(again if number else reply)

    def _forget_old(self) -> None:
        now_s = self._clock()
        while self._kept and next(iter(self._kept.values())).until_s <= now_s:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, kept = self._kept.popitem(last=False)
        self._bytes -= _size_bytes(kept.reply)


def _size_bytes(reply: Reply) -> int:
    return len(reply.body) + _OVERHEAD_BYTES
