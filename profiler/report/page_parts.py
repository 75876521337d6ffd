"""What a report's page is made of: one HTML file without scripts, fonts or network.

Pages open from disk, follow the reader's light or dark setting, and can be read by keyboard and
screen reader: landmarks, headings in order, tables with captions that scroll by the arrow keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import Final

from modelless.profiler.report.page_style import STYLE

Cells = Sequence[str]

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
        title, heading, lead, subtitle: text.
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
        heads: of the columns, text.
        rows: of cells.
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
    """What is folded until it is asked for; ``content`` is HTML."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def count_of(number: int, what: str) -> str:
    """``1 point``, ``2 points``."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
