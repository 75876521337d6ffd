"""The parts of a report's page: one HTML file without scripts, fonts or network.

Pages open from disk, follow the reader's light or dark setting, and can be read by keyboard and
screen reader: landmarks, headings in order, tables with captions that scroll by the arrow keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import Final

Cells = Sequence[str]

STYLE: Final = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --paper: #ffffff; --ink: #1b2330; --muted: #667085; --line: #e2e6ec;
  --teal: #0d8a80; --orange: #d9722c; --blue: #3b6fd4; --red: #cf3f4c;
  --shade-0: #0b3c5d; --shade-1: #0f527a; --shade-2: #14698f; --shade-3: #1c8094;
  --shade-4: #2f978c; --shade-5: #55ab7e; --shade-6: #83bb70; --shade-7: #b3c664;
  --shade-8: #dfc95c; --shade-9: #eeb04f; --shade-10: #ea9144; --shade-11: #df6f3f;
  --series-0: #0072b2; --series-1: #d55e00; --series-2: #009e73; --series-3: #b55c93;
  --series-4: #d18e00; --series-5: #3d9bd4; --series-6: #4a5160;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1319; --paper: #171c25; --ink: #e7ebf2; --muted: #98a2b3; --line: #2b3342;
    --teal: #35c2b4; --orange: #f39a57; --blue: #7fa6ff; --red: #ff7a85;
    --shade-0: #2a6f9e; --shade-1: #2f83ad; --shade-2: #3696b4; --shade-3: #42a7ae;
    --shade-4: #58b6a0; --shade-5: #78c38f; --shade-6: #9ccd80; --shade-7: #c0d375;
    --shade-8: #e2d16c; --shade-9: #efba60; --shade-10: #ee9e56; --shade-11: #e78052;
    --series-0: #4da3e0; --series-1: #ff8a3d; --series-2: #2cc79b; --series-3: #e59ac6;
    --series-4: #f2b632; --series-5: #9bd7f7; --series-6: #b9c0cc;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 36px 20px 60px; }
h1 { font-size: 34px; letter-spacing: -0.02em; margin: 0; }
h2 { font-size: 20px; letter-spacing: -0.01em; margin: 0 0 6px; }
.lead { font-size: 18px; margin: 2px 0 0; }
.subtitle, footer, figcaption, small, section > p { color: var(--muted); }
.subtitle { margin: 6px 0 0; font-size: 13.5px; }
section > p { max-width: 76ch; margin: 0 0 16px; }
section, .tile { background: var(--paper); border: 1px solid var(--line); border-radius: 12px; }
section { padding: 24px 26px; margin-top: 20px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px;
  margin-top: 26px; }
.tile { padding: 14px 18px; display: flex; flex-direction: column; }
.tile b { font-size: 28px; letter-spacing: -0.02em; line-height: 1.25; color: var(--teal); }
.tile span { font-weight: 600; }
.tile small { font-size: 12.5px; }
.plot { margin: 8px 0 18px; }
.plot svg { width: 100%; height: auto; display: block; }
.plot svg * { stroke-linejoin: round; }
.plot figcaption { font-size: 13.5px; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: 14px;
  margin: 4px 0 20px; }
.card { margin: 0; }
.card img { width: 100%; aspect-ratio: 1; object-fit: cover; border-radius: 10px; display: block; }
.card figcaption { display: flex; flex-direction: column; margin-top: 6px; line-height: 1.3; }
.card b { color: var(--ink); font-size: 14px; }
.card span { font-size: 12px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px;
  font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--muted); font-size: 12.5px; }
th, td { padding: 7px 14px 7px 0; border-bottom: 1px solid var(--line); vertical-align: baseline; }
tbody tr:last-child td { border-bottom: 0; }
td { white-space: nowrap; }
td small { white-space: nowrap; }
td.wide { white-space: normal; }
code { font: 12.5px ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.limits { color: var(--muted); font-size: 12px; display: block; }
.refused { color: var(--red); font-weight: 600; }
details { margin-top: 14px; }
summary { cursor: pointer; color: var(--muted); font-size: 13.5px; margin-bottom: 6px; }
ul { padding-left: 20px; margin: 4px 0 0; }
li { margin: 3px 0; }
a { color: var(--blue); }
footer { margin-top: 22px; font-size: 13.5px; }
@media (max-width: 640px) { section { padding: 18px 16px; } main { padding: 22px 12px 40px; } }
"""
"""The looks of all pages: colours for light and dark as CSS variables, and type."""

_PAGE: Final = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
<header><h1>$heading</h1><p class="lead">$lead</p>
<p class="subtitle">$subtitle</p></header>
$content
<footer>The same as data: <a href="report.json">report.json</a></footer>
</main>
</body>
</html>
""")


def page(
    content: str, *, title: str, heading: str, lead: str, subtitle: str, style: str = ""
) -> str:
    """A whole page.

    Args:
        content: HTML.
        style: CSS beside that of all reports.
    """
    return _PAGE.substitute(
        title=escape(title),
        style=STYLE + style,
        heading=escape(heading),
        lead=escape(lead),
        subtitle=escape(subtitle),
        content=content,
    )


def section(heading: str, text: str, content: str, anchor: str = "") -> str:
    """A section of the page; ``text`` and ``content`` are HTML, ``anchor`` is its id."""
    paragraph = f"<p>{text}</p>" if text else ""
    place = f' id="{escape(anchor)}"' if anchor else ""
    return f"<section{place}><h2>{escape(heading)}</h2>{paragraph}{content}</section>"


def table(heads: Sequence[str], rows: Iterable[Cells], caption: str = "") -> str:
    """A table; cells are HTML. The last cell of a short row takes the rest of the columns.

    Args:
        caption: text that names it to a screen reader; its frame can then be scrolled by keyboard.
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = []
    for cells in rows:
        span = len(heads) - len(cells) + 1
        last = f'<td colspan="{span}" class="wide">' if span > 1 else "<td>"
        body.append(
            "<tr>"
            + "".join(f"<td>{cell}</td>" for cell in cells[:-1])
            + f"{last}{cells[-1]}</td></tr>"
        )
    label = f' role="region" aria-label="{escape(caption)}" tabindex="0"' if caption else ""
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"{label}><table>{named}<thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def figure(svg: str, caption: str) -> str:
    """A picture; the caption is HTML."""
    words = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure class="plot">{svg}{words}</figure>'


def details(summary: str, content: str) -> str:
    """A part that is folded until the reader opens it; ``content`` is HTML."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def count_of(number: int, what: str) -> str:
    """``1 point``, ``2 points``."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
