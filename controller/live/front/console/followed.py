"""The pages that a stream follows, whole and in parts: each part is an element of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from modelless.controller.api.v2_reply import Reply
from modelless.controller.live.front.console.frontier import draw_frontier
from modelless.controller.live.front.console.pages import (
    CHARTS,
    VariantRow,
    now_tables,
    render_page,
    render_text,
    tiles,
    variant_tables,
)

Status = Mapping[str, Any]


class _Followed(NamedTuple):
    """A page, and the templates of the elements that change, by id."""

    title: str
    template: str
    parts: Mapping[str, str]
    values: Callable[[Status, Sequence[VariantRow], Mapping[str, float]], Mapping[str, Any]]


def _now(
    status: Status, variants: Sequence[VariantRow], traffic: Mapping[str, float]
) -> Mapping[str, Any]:
    del traffic
    accuracies = {row.variant_id: row.accuracy.percent for row in variants}
    return {"tiles": tiles(status, accuracies), "tables": now_tables(status), "charts": CHARTS}


def _variants(
    status: Status, variants: Sequence[VariantRow], traffic: Mapping[str, float]
) -> Mapping[str, Any]:
    del traffic
    return {"tables": variant_tables(status, variants)}


FOLLOWED: Final[Mapping[str, _Followed]] = {
    "": _Followed("Now", "now.html", {"tiles": "tiles.html", "tables": "tables.html"}, _now),
    "frontier": _Followed("Frontier", "frontier.html", {"marks": "marks.html"}, draw_frontier),
    "variants": _Followed("Variants", "variants.html", {"tables": "tables.html"}, _variants),
}
"""By path below ``/console/``."""


def values_of(
    page: str, status: Status, variants: Sequence[VariantRow], traffic: Mapping[str, float]
) -> Mapping[str, Any]:
    """The values of a page's templates.

    Args:
        page: a key of ``FOLLOWED``.
        traffic: answers per second, by variant.
    """
    return FOLLOWED[page].values(status, variants, traffic)


def render_followed(page: str, values: Mapping[str, Any]) -> Reply:
    """The whole page."""
    found = FOLLOWED[page]
    stream = f"/console/stream?page={page}"
    return render_page(found.template, found.title, stream=stream, **values)


def render_parts(page: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The id and the HTML of each element that changes."""
    for name, template in FOLLOWED[page].parts.items():
        yield name, render_text(template, **values)
