"""Drawing with Matplotlib in the colours of a page: as SVG for the page, as PNG for elsewhere.

Matplotlib writes fixed colours, and the colours of a page depend on its reader's light or dark
setting. So drawings name colours by the constants below. In an SVG each name becomes a CSS variable
of the page (``pages.STYLE``), in a PNG the value of that variable in light.
"""

from __future__ import annotations

import io
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from modelless.common.errors import require
from modelless.common.files import user_cache
from modelless.common.pages import STYLE

Draw = Callable[[Any], None]
"""Draws on a ``matplotlib.figure.Figure``."""

INK, LINE, MUTED, PAPER = "page:ink", "page:line", "page:muted", "page:paper"
TEAL, ORANGE, BLUE, RED = "page:teal", "page:orange", "page:blue", "page:red"
SHADES: Final = tuple(f"page:shade-{place}" for place in range(12))
"""In an order, from dark to bright."""
SERIES: Final = tuple(f"page:series-{place}" for place in range(7))
"""Told apart by readers of any colour vision: Okabe and Ito, "Color Universal Design" (2008),
without their yellow, which white swallows."""

WIDTH_IN: Final = 10.2
"""Of a picture that takes the page's whole width."""

NAME_PT: Final = 8.5
"""The size of names in a picture."""

NAME_GAP_PT: Final = 11.5
"""From one name in a column to the next."""

_TITLE_LETTERS: Final = 92

_NAMES: Final = (INK, LINE, MUTED, PAPER, TEAL, ORANGE, BLUE, RED, *SHADES, *SERIES)
_STAND_INS: Final = {name: f"#0102{place:02x}" for place, name in enumerate(_NAMES)}

_PNG_DPI: Final = 160
_LETTER_PT, _LINE_PT = 5.2, 12.0
"""About how wide a letter and how high a line of a name in a picture is, points."""

_LOOKS: Final[Mapping[str, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "text.color": INK,
    "text.parse_math": False,  # names are anybody's
    "axes.facecolor": "none",
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.0,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


def check_matplotlib() -> None:
    """Raise EnvironmentUnfitError, which says how to install it, where Matplotlib is missing.

    Matplotlib keeps its list of fonts beside this package's own caches.
    """
    os.environ.setdefault("MPLCONFIGDIR", str(user_cache() / "matplotlib"))
    require("matplotlib", "a report with pictures", "pip install 'modelless[report]'")


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture that can be made.

    Attributes:
        label: a description for readers who cannot see it.
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


def render_svg(draw: Draw, inches: tuple[float, float], name: str, label: str) -> str:
    """A picture as SVG whose colours are the page's.

    Args:
        name: begins every id in it, so that two pictures on a page do not mix up theirs.
        label: what it shows, for who cannot see it; text.

    Raises:
        EnvironmentUnfitError: Matplotlib is not installed.
    """
    with _drawn(draw, inches, _STAND_INS, {"svg.hashsalt": name}) as figure:
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _themed(buffer.getvalue(), name, label)


def render_png(draw: Draw, inches: tuple[float, float]) -> bytes:
    """A picture as PNG on white. Arguments and errors are those of ``render_svg``."""
    light = {name: _value_in_light(name) for name in _NAMES}
    with _drawn(draw, inches, light, {}) as figure:
        buffer = io.BytesIO()
        figure.savefig(
            buffer, format="png", dpi=_PNG_DPI, facecolor=PAPER, metadata={"Software": None}
        )
    return buffer.getvalue()


def plain_ticks(axis: Any, at: tuple[float, ...] = (1.0, 2.0, 5.0)) -> None:
    """1, 2, 5, 10, ... written out on a logarithmic axis.

    Args:
        at: the multiples of powers of ten that are marked.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=10.0, subs=at))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())  # not to be seen, but laid out


def name_points(figure: Any, axes: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Write the names of a frontier's points: up and to the left of them is nothing else.

    A name that would lie on another goes higher.

    Args:
        points: their place, in data, and name, from left to right.
    """
    figure.draw_without_rendering()  # settles the layout: only then is it known where points lie
    per_point = figure.dpi / 72.0
    taken: list[tuple[float, float, float]] = []  # left, right and bottom of names, points
    for x, y, name in points:
        at_x, at_y = axes.transData.transform((x, y)) / per_point
        right, bottom = at_x - 8.0, at_y + 5.0
        left = right - _LETTER_PT * len(name)
        for other_left, other_right, other_bottom in taken:
            apart = left > other_right or right < other_left
            if not apart and abs(bottom - other_bottom) < _LINE_PT:
                bottom = other_bottom + _LINE_PT
        taken.append((left, right, bottom))
        is_near = bottom - at_y < _LINE_PT
        axes.annotate(
            name,
            (x, y),
            arrowprops=None if is_near else {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5},
            xytext=(right - at_x, bottom - at_y),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=9,
        )


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for names in a column: as near as can be to where they are wanted, ``gap`` apart.

    The least sum of squared shifts: less ``gap`` a name below it, places need only not descend,
    which is an isotonic regression.

    Args:
        wanted: in ascending order.
        gap: between two names; less where they would not fit between ``low`` and ``high``.
    """
    if len(wanted) < 2:
        return [min(high, max(low, each)) for each in wanted]
    from sklearn.isotonic import isotonic_regression

    gap = min(gap, (high - low) / (len(wanted) - 1))
    loose = [each - gap * place for place, each in enumerate(wanted)]
    found = isotonic_regression(loose, y_min=low, y_max=high - gap * (len(wanted) - 1))
    return [float(each) + gap * place for place, each in enumerate(found)]


def name_column(
    axes: Any, points: Sequence[tuple[float, float]], names: Sequence[str], colours: Sequence[str]
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


def css_variable(name: str) -> str:
    """``page:ink`` as ``--ink``."""
    return "--" + name.removeprefix("page:")


@contextmanager
def _drawn(
    draw: Draw, inches: tuple[float, float], colours: Mapping[str, str], looks: Mapping[str, Any]
) -> Iterator[Any]:
    """A figure that is drawn, as long as the names of colours mean ``colours``."""
    check_matplotlib()
    import matplotlib as mpl
    from matplotlib.colors import get_named_colors_mapping
    from matplotlib.figure import Figure

    known = get_named_colors_mapping()
    known.update(colours)
    settled = {key: colours.get(value, value) for key, value in {**_LOOKS, **looks}.items()}
    try:
        with mpl.rc_context(settled):
            figure = Figure(figsize=inches, layout="constrained")
            draw(figure)
            yield figure
    finally:
        for name in colours:
            del known[name]


def _value_in_light(name: str) -> str:
    found = re.search(rf"{css_variable(name)}: (#[0-9a-f]{{6}});", STYLE)
    if found is None:
        raise KeyError(f"the page's style has no {css_variable(name)}")
    return found[1]


def _themed(svg: str, name: str, label: str) -> str:
    """Matplotlib's SVG made fit for a page: its colours, its font, its width, no alien ids."""
    svg = svg[svg.index("<svg") :]
    for colour, stand_in in _STAND_INS.items():
        svg = svg.replace(stand_in, f"var({css_variable(colour)})")
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"(font: [^;\"]*?px) [^;\"]*", r"\1 system-ui, sans-serif", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", svg)
    kept = f'role="img" aria-label="{escape(label)}"'
    head = r'<svg [^>]*?(viewBox="[^"]*")[^>]*>'
    svg = re.sub(head, lambda found: f"<svg {found[1]} {kept}>", svg, count=1)
    return re.sub(r"<(metadata|style)\b.*?</\1>\s*", "", svg, flags=re.DOTALL)
