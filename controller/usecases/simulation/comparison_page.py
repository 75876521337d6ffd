"""The reports of a comparison: each one HTML file that needs no scripts, fonts or network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from modelless.common.pages import count_of, details, figure, page, section, table
from modelless.controller.sim.compare.pictures import (
    HALF_WIDTH_IN,
    STYLE,
    Mark,
    courses_chart,
    frontier_chart,
    interval_chart,
    margin_chart,
)
from modelless.controller.usecases.simulation.comparison_figures import (
    COLUMNS,
    Table,
    best_of,
    bound_words,
    cause_table,
    cell_of,
    contender_table,
    name_of,
    notes_of,
    summary_rows,
    unavoidable_percent,
    world_table,
)

_READING: Final = (
    "Every contender meets the very same queries, faults and device noise at each seed. "
    "So differences to the first contender are taken seed by seed, and are better known than "
    "either figure.",
    "A query is good if its answer came by its deadline with at least its minimum accuracy. "
    "Value per query is the sum of the good queries' accuracies (0 to 1) over all queries; every "
    "query that is not good is a violation.",
    "Intervals are 95 %, by Student's t over the seeds; there are none for a single seed.",
    "The clairvoyant bound knows all arrivals beforehand. No policy can beat it in expectation; a "
    "single run may by chance, and none needs to reach it. Attainment has such a bound of its own: "
    "where it is below 1, some violations are unavoidable, whatever the policy.",
    "Cost is the price of the device time that answered queries took; rent is that of all devices "
    "for as long as they are there, busy or not. Published systems are "
    "rebuilt from their papers on one control plane: their decisions are compared, not their code.",
)


def render_page(document: Mapping[str, Any]) -> str:
    """The page of a document that ``comparison.document_of`` made, with modelless's version."""
    scenarios, contenders = document["scenarios"], document["contenders"]
    seeds = document["seeds"]
    counted = (
        f"{count_of(len(contenders), 'contender')}, {count_of(len(scenarios), 'scenario')}, "
        f"{count_of(len(seeds), 'seed')}"
    )
    sections = [
        _overview(scenarios) if len(scenarios) > 1 else "",
        *(_scenario(number, each) for number, each in enumerate(scenarios)),
        contenders_section(contenders),
        _how_to_read(_READING),
    ]
    return page(
        "".join(sections),
        title="modelless: policies compared",
        heading="Policies compared",
        lead=counted + ", paired by seed.",
        subtitle=f"modelless {document['modelless']}, simulated",
        style=STYLE,
    )


def _overview(scenarios: Sequence[Mapping[str, Any]]) -> str:
    """Value per query of everybody everywhere; the best of a row is bold."""
    names = [row["contender"] for row in scenarios[0]["rows"]]
    rows = []
    for number, scenario in enumerate(scenarios):
        best = best_of(scenario["rows"])["value_per_query"]
        cells = [f'<a href="#scenario-{number}">{escape(scenario["label"])}</a>']
        for place, row in enumerate(scenario["rows"]):
            mean = row["value_per_query"]["mean"]
            text = '<span class="refused">failed</span>' if mean is None else f"{mean:.4f}"
            cells.append(f"<b>{text}</b>" if place in best else text)
        bound = scenario["bound"]["value_per_query"]["mean"]
        cells.append("–" if bound is None else f"{bound:.4f}")
        rows.append(cells)
    heads = ["scenario", *names, "bound"]
    return section("Value per query", "The best of each row is bold.", table(heads, rows))


def _scenario(number: int, scenario: Mapping[str, Any]) -> str:
    rows = scenario["rows"]
    bound = scenario["bound"]["value_per_query"]["mean"]
    line = escape(bound_words(scenario))
    line = line[0].upper() + line[1:] if bound is None else f"The line is the {line}"
    values = interval_chart(
        _marks(rows, "value_per_query"), "Value per query", bound=bound, number="{:.4f}".format
    )
    points = [
        (row["contender"], row["violations_percent"]["mean"], row["mean_accuracy"]["mean"])
        for row in rows
        if row["violations_percent"]["mean"] is not None
        and row["mean_accuracy"]["mean"] is not None
    ]
    cost = interval_chart(
        _marks(rows, "cost_usd_per_million"),
        "Cost, USD a million queries",
        width_in=HALF_WIDTH_IN,
        from_zero=True,
    )
    best = best_of(rows)
    least = unavoidable_percent(scenario)
    cells = []
    for place, row in enumerate(rows):
        told = [f'<span class="refused">failed</span> {escape(row["error"])}']
        if row["runs"]:
            shown = {column.key: escape(cell_of(column, row)) for column in COLUMNS}
            told = [f"<b>{v}</b>" if place in best[key] else v for key, v in shown.items()]
        cells.append([escape(name_of(row)), *told])
    heads = ["contender", *(column.head for column in COLUMNS)]
    notes = "".join(f"<li>{escape(note)}</li>" for note in notes_of(scenario))
    content = (
        figure(
            values.svg(f"value-{number}"), f"<b>Value per query</b>, with 95 % intervals. {line}"
        )
        + table(heads, cells)
        + (f"<ul>{notes}</ul>" if notes else "")
        + '<div class="pair">'
        + figure(
            frontier_chart(points, unavoidable=least).svg(f"frontier-{number}"),
            "<b>Accuracy bought with violations</b>: up and left wins."
            + (" Nobody is left of the line." if least is not None else ""),
        )
        + figure(cost.svg(f"cost-{number}"), "<b>Cost</b>, USD a million queries.")
        + f"</div>{_courses(number, scenario['series'])}"
    )
    text = escape(scenario["description"])
    return f'<div id="scenario-{number}">{section(scenario["label"], text, content)}</div>'


def _courses(number: int, series: Mapping[str, Any]) -> str:
    """What happened over time, if anything did."""
    known = {
        name: course
        for name, course in series["contenders"].items()
        if course is not None and course["queries"]
    }
    if not known:
        return ""
    most = max(max(course["queries"]) / course["step_s"] for course in known.values())
    words = (
        "By the queries' time of arrival. Teal: attainment, left axis. Orange: mean "
        "accuracy of the answers, per cent, right axis. Grey: load, "
        f"up to {most:.4g} queries a second. Below: USD an hour; teal: device time of answered "
        "queries, by their arrival too, so that a crowd served later on may exceed the rent; "
        "dashed: rent of all devices."
    )
    pictures = figure(courses_chart(known).svg(f"courses-{number}"), words)
    return details(f"Over time, seed {series['seed']}", pictures)


def _how_to_read(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{each}</li>" for each in sentences)
    return section("How to read this", "", f"<ul>{items}</ul>")


def contenders_section(contenders: Sequence[Mapping[str, Any]]) -> str:
    """The contenders: idea, source and policies of each."""
    rows = [
        [
            escape(each["name"]),
            f'<span class="words">{escape(each["description"])}</span>',
            f'<span class="words">{escape(each["source"])}</span>',
            "<br>".join(
                f"{escape(seam)}: <code>{escape(_said(told))}</code>"
                for seam, told in each["policies"].items()
            ),
        ]
        for each in contenders
    ]
    style = "What is not named stays as the world has it."
    return section("Who was compared", style, table(["name", "idea", "source", "policies"], rows))


def _marks(rows: Sequence[Mapping[str, Any]], name: str) -> list[Mark]:
    return [
        Mark(row["contender"], row[name]["mean"], row[name]["low"], row[name]["high"])
        for row in rows
        if row[name]["mean"] is not None
    ]


def _said(specification: Any) -> str:
    """A policy's specification in one line."""
    if not isinstance(specification, Mapping):
        return str(specification)
    settings = [f"{k}={_said(v)}" for k, v in specification.items() if k != "policy"]
    return f"{specification.get('policy', '')}({', '.join(settings)})"


_WORST: Final = 20
"""Worlds with all their features."""

_CURVES: Final = 3
"""Contenders in the picture, the first one included."""

_REGRET_READING: Final = (
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
        _margins(regret)
        + section(
            "Contenders",
            "Means over all worlds. The margin is each one's own: over the best of all the others.",
            _table(contender_table(regret)),
        )
        + section(
            "Causes",
            "The mean margin in the worlds up to the feature's median, and in those above it.",
            _table(cause_table(regret)),
        )
        + _worlds(regret)
        + contenders_section(document["contenders"])
        + _how_to_read(_REGRET_READING),
        title="modelless: regret over random worlds",
        heading="Regret over random worlds",
        lead=counted,
        subtitle=f"modelless {document['modelless']}, simulated; worlds to {regret['set']} on, "
        f"seed {regret['seed']}",
        style=STYLE,
    )


def _margins(regret: Mapping[str, Any]) -> str:
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


def _table(told: Table) -> str:
    heads, rows = told
    return table(heads, [[escape(cell) for cell in row] for row in rows])


def _worlds(regret: Mapping[str, Any]) -> str:
    heads, cells = world_table(regret)
    told = ([escape(cell) for cell in row] for row in cells[:_WORST])
    content = table(heads, [[*row, f'<span class="words">{last}</span>'] for *row, last in told])
    for each in regret["worlds"][:_WORST]:
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
