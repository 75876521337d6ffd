"""Running calibration data within a stated memory: calls are cut into pieces of fewer items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from numpy.typing import NDArray

from modelless.variants.making.calibration import CalibrationData, Feed
from modelless.variants.making.session import Session

MOST_BYTES: Final = 128 << 20
"""Bytes that the values asked of one run may take. The engine holds them, and a copy of them."""

MOST_KEPT_BYTES: Final = 256 << 20
"""Bytes of answers that are kept to be compared with several times."""


@dataclass(frozen=True)
class Pieces:
    """Calibration data, cut so that what a session is asked for fits into ``MOST_BYTES``.

    If the values of one item do not fit, they are asked for in several runs. A single value may be
    larger.

    Attributes:
        session: that runs them.
        names: of the values; None for the graph's outputs.
    """

    session: Session
    names: Sequence[str] | None = None
    _item_bytes: dict[object, Mapping[str, int]] = field(default_factory=dict)

    def cut(self, feed: Feed) -> Iterator[Feed]:
        """The call's items, as many at a time as fit; the whole call if it cannot be cut."""
        count = len(next(iter(feed.values()), ()))
        if count < 2 or not self.session.is_batched:
            yield feed
            return
        items = max(1, MOST_BYTES // max(1, sum(self._sizes(feed).values())))
        for start in range(0, count, items):
            yield {name: array[start : start + items] for name, array in feed.items()}

    def run(self, feed: Feed) -> Iterator[dict[str, NDArray[Any]]]:
        """The values of one piece, in one run or several."""
        sizes = self._sizes(feed) if len(next(iter(feed.values()), ())) == 1 else {}
        group: list[str] = []
        for name in self.session.outputs if self.names is None else self.names:
            if group and sum(sizes.get(each, 0) for each in (*group, name)) > MOST_BYTES:
                yield self.session.run(feed, group)
                group = []
            group.append(name)
        if group:
            yield self.session.run(feed, group)

    def _sizes(self, feed: Feed) -> Mapping[str, int]:
        """Bytes of the values of one item of such a call, by name; measured once for each shape."""
        key = tuple((name, array.shape[1:]) for name, array in sorted(feed.items()))
        if key not in self._item_bytes:
            one = {name: array[:1] for name, array in feed.items()}
            names = self.session.outputs if self.names is None else self.names
            found = self.session.run(one, names)
            self._item_bytes[key] = {name: value.nbytes for name, value in found.items()}
        return self._item_bytes[key]


class Answers:
    """What a session answers to calibration data, piece by piece.

    They are kept as far as they fit into ``MOST_KEPT_BYTES``, and asked for again beyond.

    Attributes:
        calls: the data in the pieces that the answers are to.
    """

    def __init__(self, session: Session, calibration: CalibrationData) -> None:
        self._session = session
        self._kept: list[dict[str, NDArray[Any]]] = []
        self._left_bytes = MOST_KEPT_BYTES
        pieces = Pieces(session)
        self.calls = CalibrationData(
            tuple(piece for feed in calibration.feeds for piece in pieces.cut(feed))
        )

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        for place, feed in enumerate(self.calls.feeds):
            if place < len(self._kept):
                yield self._kept[place]
                continue
            found = self._session.run(feed)
            size = sum(value.nbytes for value in found.values())
            if place == len(self._kept) and size <= self._left_bytes:
                self._kept.append(found)
                self._left_bytes -= size
            yield found
