"""What the pictures have in common: a chart as a value, names, titles, axes, colours."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from modelless.profiler.report.plotting import (
    INK,
    MUTED,
    SERIES,
    plain_ticks,
    render_png,
    render_svg,
    spread,
)

WIDTH_IN: Final = 10.2
"""Of a picture that takes the page's whole width."""

NAME_PT: Final = 8.5
"""The size of names in a picture."""

NAME_GAP_PT: Final = 11.5
"""From one name in a column to the next."""

_TITLE_LETTERS: Final = 92


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture that can be made.

    Attributes:
        draw: draws it on a ``matplotlib.figure.Figure``.
        inches: width and height.
        label: what it shows, for who cannot see it.
    """

    draw: Callable[[Any], None]
    inches: tuple[float, float]
    label: str

    def svg(self, name: str) -> str:
        """See ``render_svg``."""
        return render_svg(self.draw, self.inches, name, self.label)

    def png(self) -> bytes:
        """See ``render_png``."""
        return render_png(self.draw, self.inches)


def name_column(
    axes: Any,
    points: Sequence[tuple[float, float]],
    names: Sequence[str],
    colours: Sequence[str],
) -> None:
    """Names in a column to the right of the axes, each led to its point, none over another."""
    box = axes.get_window_extent()
    gap = NAME_GAP_PT * axes.figure.dpi / 72.0 / box.height
    places = [
        axes.transAxes.inverted().transform(axes.transData.transform(point))[1] for point in points
    ]
    order = sorted(range(len(points)), key=lambda place: places[place])
    free = spread([places[place] for place in order], gap, 0.01, 0.99)
    for place, height in zip(order, free, strict=True):
        axes.annotate(
            names[place],
            points[place],
            xytext=(1.02, height),
            textcoords="axes fraction",
            va="center",
            fontsize=NAME_PT,
            color=MUTED if colours[place] == MUTED else INK,
            arrowprops={
                "arrowstyle": "-",
                "color": colours[place],
                "linewidth": 0.5,
                "alpha": 0.7,
                "relpos": (0.0, 0.5),
                "shrinkA": 1,
                "shrinkB": 4,
            },
        )


def title(figure: Any, words: str) -> None:
    """The picture's title, over as many lines as it needs."""
    lines = "\n".join(textwrap.wrap(words, _TITLE_LETTERS))
    figure.suptitle(lines, x=0.008, ha="left", fontsize=11.5, fontweight="bold")


def logarithmic(axes: Any, x_label: str, y_label: str) -> None:
    """Logarithmic axes with plain numbers."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)


def colours_of(names: Sequence[str]) -> dict[str, str]:
    """A colour a name, over again where there are too few."""
    return {
        name: SERIES[place % len(SERIES)] for place, name in enumerate(dict.fromkeys(sorted(names)))
    }
