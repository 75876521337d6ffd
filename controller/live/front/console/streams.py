"""Streams of server-sent events: each tab that shows a page gets what changes on it.

A page is rendered once for all its readers, and only while there are some. Every turn sends each of
them something, a comment if nothing changed: so one that is gone, or does not read, is noticed.
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from modelless.common.errors import ModellessError, OverloadedError, UnavailableError
from modelless.controller.api.v2_reply import Reader, Reply

TURN_S: Final = 2.0
LIFE_TURNS: Final = 30
"""A stream ends then, and its tab opens another: a HAProxy that was replaced waits no longer for
it, and a key that was revoked counts no longer. (Proxies close what is silent for 60 s.)"""

MOST_READERS: Final = 32
MOST_OF_ONE: Final = 16
"""Streams of a gateway, and of one key; those without a key count as one."""

Event = tuple[str, str]
"""Name and data."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"transfer-encoding", b"chunked"),
]
_BEGINNING: Final = b"retry: 1000\n\n"
_NOTHING_NEW: Final = b":\n\n"
_END: Final = b"0\r\n\r\n"


@dataclass(eq=False, slots=True)
class _Open:
    reader: Reader
    page: str
    owner: str
    turns: int = 0


class EventStreams:
    """The readers of one gateway.

    Args:
        render: renders a page's events aside, and passes them on; called once a turn for each page
            that has readers.
    """

    def __init__(self, render: Callable[[str, Callable[[Iterable[Event]], None]], None]) -> None:
        self._render = render
        self._open: list[_Open] = []
        self._last: dict[str, set[Event]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._open)

    def open(self, page: str, owner: str, first: Iterable[Event] = ()) -> Reply:
        """Return the reply that streams a page.

        Args:
            owner: id of the key; empty for none.
            first: events for this reader alone.

        Raises:
            OverloadedError: there are as many as may be.
            UnavailableError: the gateway is about to end.
        """
        if self._is_closed:
            raise UnavailableError("this gateway is about to end; another one streams", 1.0)
        for most, count, whose in (
            (MOST_READERS, len(self._open), "of this gateway"),
            (MOST_OF_ONE, sum(each.owner == owner for each in self._open), "of one key"),
        ):
            if count >= most:
                raise OverloadedError(f"{most} streams {whose} are open; close a tab first", 10.0)

        def begin(reader: Reader) -> Callable[[], None]:
            opened = _Open(reader, page, owner)
            self._open.append(opened)
            reader.write_stream(_chunk(_BEGINNING + _encode(first)))
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(TURN_S, self._on_time)
            return lambda: self._forget(opened)

        return Reply(200, b"", [*_HEADERS], begin)

    def turn(self) -> None:
        """Send each reader what has changed, and end streams that are old or not read."""
        for each in list(self._open):
            each.turns += 1
            if each.reader.is_slow or each.turns > LIFE_TURNS:
                self._end(each)
        pages = {each.page for each in self._open}
        self._last = {page: self._last.get(page, set()) for page in pages}
        for page in sorted(pages):
            try:
                self._render(page, lambda events, page=page: self._send(page, events))  # type: ignore[misc]
            except ModellessError:  # too much waits to be done aside
                self._send(page, ())

    def close(self) -> None:
        """End all streams, and begin no other."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for each in list(self._open):
            self._end(each)

    def _on_time(self) -> None:
        self._timer = None
        self.turn()
        if self._open:
            self._timer = asyncio.get_running_loop().call_later(TURN_S, self._on_time)

    def _send(self, page: str, events: Iterable[Event]) -> None:
        known = self._last.get(page, set())
        found = list(events)
        data = _chunk(_encode(each for each in found if each not in known) or _NOTHING_NEW)
        self._last[page] = known if not found else set(found)
        for each in list(self._open):
            if each.page == page:
                each.reader.write_stream(data)

    def _end(self, ended: _Open) -> None:
        self._forget(ended)
        if ended.reader.is_slow:
            ended.reader.end_stream(is_whole=False)
        else:
            ended.reader.write_stream(_END)
            ended.reader.end_stream(is_whole=True)

    def _forget(self, gone: _Open) -> None:
        if gone in self._open:
            self._open.remove(gone)


def event_of(name: str, document: Any) -> Event:
    """An event whose data is JSON."""
    return name, json.dumps(document, separators=(",", ":"))


def _encode(events: Iterable[Event]) -> bytes:
    lines = []
    for name, text in events:
        lines += [f"event: {name}", *(f"data: {line}" for line in text.split("\n")), "", ""]
    return "\n".join(lines).encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
