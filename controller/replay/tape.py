"""A tape: lines of JSON in a compressed file, written by a thread from a bounded queue.

A recording with a hole cannot be replayed, so a tape that cannot keep up, or is full, is cut there
and says so: a last line ``["cut", why, items]``. One that was closed ends with ``["end", items]``.
One without either belongs to a process that ended in between: what was flushed counts.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from modelless import __version__
from modelless.common.errors import InvalidInputError
from modelless.controller.replay.codec import encode, encode_item

logger = logging.getLogger(__name__)

FORMAT: Final = 4
SUFFIX: Final = ".tape.gz"
MOST_QUEUED: Final = 50_000
"""Number of items that may wait for the thread: some seconds of a gateway at its limit."""

Item = tuple[float, Any, Sequence[Any]]
"""A time in seconds, the event that a machine handled at that time, and the effects it returned."""

_WRITE_EVERY_S: Final = 0.25
_END_BYTES: Final = 4096


class Tape:
    """Writes a machine's events and effects to a file. ``put`` takes less than a microsecond.

    Args:
        header: the facts that a reader needs first.
        max_bytes: largest size of the file; the tape is cut there.
        most_queued: number of items that may wait for the thread.
    """

    def __init__(
        self, path: Path, header: Mapping[str, Any], max_bytes: int, most_queued: int = MOST_QUEUED
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._most_queued = most_queued
        self._queue: deque[Item] = deque()
        self._cut = ""
        self._count = 0
        self._closing = threading.Event()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._raw: BinaryIO = path.open("xb")
        self._file = gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=self._raw)
        versions = {"format": FORMAT, "modelless": __version__}
        self._file.write(encode({**versions, **header}).encode() + b"\n")
        self._file.flush()
        self._thread = threading.Thread(target=self._run, name="modelless-tape", daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Keep an item, none of whose values may change any more.

        Does nothing once the tape is cut.
        """
        if self._cut:
            return
        if len(self._queue) >= self._most_queued:
            self._cut = f"{self._most_queued} items waited to be written"
            return
        self._queue.append(item)

    def cut(self, why: str) -> None:
        """Cut the tape here, because later events could not be replayed."""
        self._cut = self._cut or why

    def close(self) -> None:
        """Write the items that wait, and the end."""
        self._closing.set()
        self._thread.join()
        self._cut = self._cut or "closed"  # later items are dropped

    def _run(self) -> None:
        try:
            while not self._closing.wait(_WRITE_EVERY_S) and not self._cut:
                self._drain()
            self._drain()
            last = ["cut", self._cut, self._count] if self._cut else ["end", self._count]
            self._file.write(encode(last).encode() + b"\n")
            self._file.close()
        except (OSError, TypeError, ValueError) as error:
            self._cut = str(error) or type(error).__name__
        finally:
            self._raw.close()
        if self._cut:
            self._queue.clear()
            logger.error("the recording %s is cut: %s", self.path, self._cut)

    def _drain(self) -> None:
        queue, pending_bytes = self._queue, 0
        room_bytes = self._max_bytes - _END_BYTES
        while queue:
            items = [queue.popleft() for _ in range(min(len(queue), 256))]
            lines = b"".join([encode_item(*item).encode() + b"\n" for item in items])
            pending_bytes += len(lines)  # an upper bound: the compressed size is known later
            if self._raw.tell() + pending_bytes > room_bytes:
                self._file.flush()
                pending_bytes = len(lines)
            if self._raw.tell() + pending_bytes > room_bytes:
                self._cut = f"it is full: {self._max_bytes} bytes (record.max_bytes)"
                break
            self._file.write(lines)
            self._count += len(items)
        if pending_bytes:
            self._file.flush()  # so that the tape of a killed process can be read up to here


class TapeReader:
    """Reads a tape once, from its beginning.

    Attributes:
        ending: after the last item: ``end``, ``unfinished``, or the reason why the tape was cut.

    Raises:
        InvalidInputError: the file is no tape, or has another version's format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ending = "unfinished"
        self._lines = _lines(path)
        header = json.loads(next(self._lines, "null"))
        if not isinstance(header, dict):
            raise InvalidInputError.of(str(path), header, "a recording")
        if header.get("format") != FORMAT:
            by = header.get("modelless", "of an unknown version")
            raise InvalidInputError.of(
                str(path), f"a recording of format {header.get('format')} by modelless {by}",
                f"a recording of format {FORMAT}, as modelless {__version__} makes and reads it",
                "Use the version that recorded it.",
            )  # fmt: skip
        self.header: Mapping[str, Any] = header

    def items(self) -> Iterator[tuple[float, list[Any], list[Any]]]:
        """Yield each item as parsed JSON: the time in seconds, the event and its effects."""
        for line in self._lines:
            item = json.loads(line)
            if item[0] == "end":
                self.ending = "end"
                return
            if item[0] == "cut":
                self.ending = str(item[1])
                return
            yield item[0], item[1], item[2]


def _lines(path: Path) -> Iterator[str]:
    """Yield whole lines, up to where the file breaks off."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                if not line.endswith("\n"):
                    return
                yield line
    except (EOFError, zlib.error):
        return
    except OSError as error:
        raise InvalidInputError.of("recording", str(path), "a readable tape", str(error)) from None


def clock() -> dict[str, float]:
    """Return the driver's clock and the time of day at one moment, which links the two."""
    return {"monotonic_s": time.monotonic(), "time_s": time.time()}


class Machine(Protocol):
    """A state machine: ``handle`` is the only way to change its state."""

    def handle(self, event: Any, now_s: float) -> list[Any]:
        """Change the state by one event, and return the effects."""


class Recorded:
    """A state machine that also puts each event and its effects onto a tape.

    Everything but ``handle`` is passed through to the machine.

    Args:
        machine: the machine; only this object may send it events.
    """

    def __init__(self, machine: Machine, tape: Tape) -> None:
        self._machine = machine
        self._tape = tape

    def handle(self, event: Any, now_s: float) -> list[Any]:
        """Change the machine's state by one event; record the event and return the effects."""
        effects = self._machine.handle(event, now_s)
        self._tape.put((now_s, event, effects))
        return effects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)
