"""The pages that a stream follows, whole and in parts: each part is an element of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from modelless.controller.api.v2_reply import Reply
from modelless.controller.live.front.console.frontier import draw_frontier
from modelless.controller.live.front.console.pages import (
    CHARTS,
    Lately,
    VariantRow,
    now_tables,
    render_page,
    render_text,
    tiles,
    variant_tables,
)


class Found(NamedTuple):
    """What a page shows is of these.

    Attributes:
        status: ``/modelless/status``.
    """

    status: Mapping[str, Any]
    variants: Sequence[VariantRow]
    lately: Lately

    @property
    def accuracies_percent(self) -> dict[str, float]:
        """By variant."""
        return {row.variant_id: row.accuracy.percent for row in self.variants}


class _Followed(NamedTuple):
    """A page, and the templates of the elements that change, by id."""

    title: str
    template: str
    parts: Mapping[str, str]
    values: Callable[[Found], Mapping[str, Any]]


def _now(found: Found) -> Mapping[str, Any]:
    counted = found.status, found.accuracies_percent, found.lately
    return {"tiles": tiles(*counted), "tables": now_tables(*counted), "charts": CHARTS}


FOLLOWED: Final[Mapping[str, _Followed]] = {
    "": _Followed("Now", "now.html", {"tiles": "tiles.html", "tables": "tables.html"}, _now),
    "frontier": _Followed(
        "Frontier",
        "frontier.html",
        {"marks": "marks.html"},
        lambda found: draw_frontier(found.status, found.variants, found.lately.per_s),
    ),
    "variants": _Followed(
        "Variants",
        "variants.html",
        {"tables": "tables.html"},
        lambda found: {"tables": variant_tables(found.status, found.variants)},
    ),
}
"""By path below ``/console/``."""


def render_followed(page: str, found: Found) -> Reply:
    """The whole page; ``page`` is a key of ``FOLLOWED``."""
    followed = FOLLOWED[page]
    stream = f"/console/stream?page={page}"
    return render_page(followed.template, followed.title, stream=stream, **followed.values(found))


def render_parts(page: str, found: Found) -> list[tuple[str, str]]:
    """The id and the HTML of each element that changes."""
    values = FOLLOWED[page].values(found)
    parts = FOLLOWED[page].parts
    return [(name, render_text(template, **values)) for name, template in parts.items()]
