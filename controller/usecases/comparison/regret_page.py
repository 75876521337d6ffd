"""The report of a comparison on random worlds: where the first contender loses, and why."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from modelless.common.pages import count_of, details, figure, page, section, table
from modelless.controller.sim.compare.pictures import STYLE, margin_chart
from modelless.controller.usecases.comparison.figures import (
    CAUSE_HEADS,
    CONTENDER_HEADS,
    WORLD_HEADS,
    cause_cells,
    contender_cells,
    summary_rows,
    world_cells,
)
from modelless.controller.usecases.comparison.page import contenders_section

_WORST: Final = 20
"""Worlds with all their features."""

_CURVES: Final = 3
"""Contenders in the picture, the first one included."""

_READING: Final = (
    "The margin of a contender in a world is its value per query less the best other contender's, "
    "in points: hundredths of value per query. Value per query is the sum of the good queries' "
    "accuracies (0 to 1) over all queries.",
    "The best other is another one from world to world: no single system has its figures.",
    "The load is that of the busiest twentieth of the world, over what the devices can serve. "
    "Features are what was drawn; each world has others.",
    "The halves of a feature are the worlds up to its median and those above it. Their difference "
    "over its standard error says whether it is more than chance: below 2 it may well be none. "
    "With many features one of them may exceed 2 by chance.",
    "Worlds to develop on and worlds to judge by are drawn from different random numbers. Look at "
    "worlds to judge by once a claim, and never tune on them.",
)


def render_regret_page(document: Mapping[str, Any]) -> str:
    """The page of a document with ``regret``, with modelless's version."""
    regret = document["regret"]
    first, summary = regret["first"], regret["summary"]
    counted = (
        f"{first} in {count_of(summary['worlds'], 'random world')}, against the best of "
        f"{count_of(len(document['contenders']) - 1, 'other contender')} in each."
    )
    return page(
        _overview(regret)
        + _contenders(regret)
        + _causes(regret)
        + _worlds(regret)
        + contenders_section(document["contenders"])
        + section("How to read this", "", f"<ul>{''.join(f'<li>{t}</li>' for t in _READING)}</ul>"),
        title="modelless: regret over random worlds",
        heading="Regret over random worlds",
        lead=counted,
        subtitle=f"modelless {document['modelless']}, simulated; worlds to {regret['set']} on, "
        f"seed {regret['seed']}",
        style=STYLE,
    )


def _overview(regret: Mapping[str, Any]) -> str:
    by_value = sorted(
        (each for each in regret["contenders"] if each["contender"] != regret["first"]),
        key=lambda each: -(each["value_per_query"] or 0.0),
    )
    names = [regret["first"], *(each["contender"] for each in by_value[: _CURVES - 1])]
    margins = {
        name: [each["margins"][name] for each in regret["worlds"] if name in each["margins"]]
        for name in names
    }
    chart = margin_chart(margins, regret["near_points"])
    words = (
        f"<b>Margins</b> over the best other, sorted over worlds, of {escape(names[0])} and of the "
        "others with the highest mean value. Shaded: as good as the best."
    )
    rows = [[escape(name), escape(value)] for name, value in summary_rows(regret)]
    content = (
        f'<div class="pair">{figure(chart.svg("margins"), words)}'
        f"<div>{table([regret['first'], ''], rows)}</div></div>"
    )
    return section("Margin over the best other", "", content)


def _contenders(regret: Mapping[str, Any]) -> str:
    rows = [[escape(cell) for cell in contender_cells(each)] for each in regret["contenders"]]
    text = "Means over all worlds. The margin is each one's own: over the best of all the others."
    return section("Contenders", text, table(CONTENDER_HEADS, rows))


def _causes(regret: Mapping[str, Any]) -> str:
    rows = [[escape(cell) for cell in cause_cells(each)] for each in regret["causes"]]
    text = "The mean margin in the worlds up to the feature's median, and in those above it."
    return section("Causes", text, table(CAUSE_HEADS, rows))


def _worlds(regret: Mapping[str, Any]) -> str:
    worlds = regret["worlds"]
    rows = []
    for each in worlds[:_WORST]:
        told = [escape(cell) for cell in world_cells(each, regret["first"])]
        rows.append([*told[:-1], f'<span class="words">{told[-1]}</span>'])
    content = table(WORLD_HEADS, rows)
    for each in worlds[:_WORST]:
        features = [[escape(name), f"{value:.4g}"] for name, value in each["features"].items()]
        values = sorted(each["values"].items(), key=lambda told: -told[1])
        scores = [
            [escape(name), f"{value:.4f}", f"{each['violations_percent'][name]:.2f}"]
            for name, value in values
        ]
        content += details(
            f"{each['label']}: {each['margin']:+.2f} points",
            f'<div class="pair">{table(["feature", "drawn"], features)}'
            f"{table(['contender', 'value/query', 'violations %'], scores)}</div>",
        )
    if regret["failed"]:
        content += f"<p>Without a margin: {escape(', '.join(regret['failed']))}</p>"
    text = (
        "The features named are those in which a world differs most from the median world. "
        "<code>--keep-worlds DIR</code> writes every world for <code>modelless simulate</code>."
    )
    return section("The worst worlds", text, content)
