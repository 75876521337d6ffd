"""What the pictures of a comparison are made of: SVG by plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from html import escape

TOP, BOTTOM = 24.0, 38.0
"""Room above and below what is drawn, in the pictures' own units."""


def axis(
    low: float, high: float, start: float, end: float
) -> tuple[list[float], Callable[[float], float]]:
    """Round ticks over a range, and where its values are between two coordinates."""
    spread = high - low or abs(high) or 1.0
    rough = spread / 4.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * round_ for round_ in (1, 2, 2.5, 5, 10) if power * round_ >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    last = last if last > first else first + 1
    bottom, top = first * step, last * step

    def place(value: float) -> float:
        return start + (end - start) * (value - bottom) / (top - bottom)

    return [number * step for number in range(first, last + 1)], place


def grid(x: float, top: float, floor: float, name: str) -> str:
    """A vertical line of the grid, and its name below."""
    return line("grid", x, top, x, floor) + text(x, floor + 15.0, name, "muted", "middle")


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """A line, whose looks the page has under ``kind``."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Words; they end, begin or are centred at x, as ``anchor`` says."""
    looks = f' class="{kind}"' if kind else ""
    return f'<text{looks} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def nothing(title: str, width: float) -> str:
    """A picture that says so."""
    return svg([text(8.0, 24.0, "nothing to show", "muted")], width, 40.0, title, "")


def svg(parts: Iterable[str], width: float, height: float, title: str, said: str) -> str:
    """A picture of parts; ``said`` is read aloud after its title."""
    label = escape(f"{title}. {said}" if said else title)
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="0 0 {width:g} {height:g}" aria-label="{label}">{"".join(parts)}</svg>'
    )
