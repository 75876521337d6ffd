"""CSV files, read as text so that an error can name the row."""

from __future__ import annotations

import csv
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from modelless.common.errors import InvalidInputError
from modelless.variants.validation.validation_set import check_count

if TYPE_CHECKING:
    import pandas as pd

MOST_BYTES: Final = 1 << 30
MOST_COLUMNS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Table:
    """A CSV file.

    Attributes:
        path: of the file.
        frame: its cells as text; what is left out is empty.
    """

    path: Path
    frame: pd.DataFrame

    def column(self, name: str) -> list[str]:
        """The cells under a heading; InvalidInputError says which headings there are."""
        if name not in self.frame.columns:
            shown = ", ".join(map(str, self.frame.columns[:20]))
            raise InvalidInputError.of(f"{self.path}: columns", shown, f"one called {name!r}")
        return [str(cell) for cell in self.frame[name]]

    def where(self, row: int) -> str:
        """A row in words, as an editor counts lines: the headings are line 1."""
        return f"{self.path}, line {row + 2}"


def read_table(path: Path) -> Table:
    """The CSV file at ``path``, with headings in its first line.

    Raises:
        InvalidInputError: unreadable, too large, not CSV in UTF-8, empty, or a heading twice.
    """
    import pandas as pd

    try:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidInputError.of(f"{path}: bytes", path.stat().st_size, f"up to {MOST_BYTES}")
        headings = pd.read_csv(path, dtype=str, keep_default_na=False, header=None, nrows=1)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            frame = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
        if warned and _has_more(path, len(headings.columns)):
            raise InvalidInputError.of(
                f"{path}: cells of a line", "more than headings", f"{len(headings.columns)}"
            )
    except pd.errors.EmptyDataError:
        raise InvalidInputError(f"{path}: is empty; allowed: CSV with headings.") from None
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, csv.Error) as error:
        raise InvalidInputError(
            f"{path}: not a CSV file in UTF-8 with headings: {error}."
        ) from None
    if len(headings.columns) > MOST_COLUMNS:
        raise InvalidInputError.of(
            f"{path}: columns", len(headings.columns), f"up to {MOST_COLUMNS}"
        )
    named = headings.iloc[0]
    if named.duplicated().any():
        raise InvalidInputError.of(
            f"{path}: headings", str(named[named.duplicated()].iloc[0]), "each heading once"
        )
    check_count(str(path), len(frame))
    return Table(path, frame.fillna(""))


def _has_more(path: Path, columns: int) -> bool:
    """Whether a line has cells beyond the headings; commas with nothing behind them are none."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return any(any(row[columns:]) for row in csv.reader(file))
