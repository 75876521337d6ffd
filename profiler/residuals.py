"""What was seen against what was predicted, as one correcting factor for each placement.

Sans-I/O, bounded, and hard to spoil: a single observation moves a factor by at most 5 % once the
placement is known, and one that cannot be true moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelless.variants.errors import InvalidInputError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ResidualSettings:
    """How residuals learn.

    Attributes:
        rate: weight of a new log ratio; the first few weigh more (1/n).
        clip: most that a log ratio may surprise; more is taken as this.
        absurd_ratio: an observation so many times longer or shorter than the measured median is
            ignored: a stopped process, a clock that jumped, a wrong unit.
        most: bound of a placement's factor; it stays within 1/most to most.
        most_per_neighbour: bound of the factor for one busy neighbour, 1 to this.
        half_life: observations, of all placements together, after which half of a residual that is
            not refreshed has faded.
    """

    rate: float = 0.1
    clip: float = 0.5
    absurd_ratio: float = 50.0
    most: float = 10.0
    most_per_neighbour: float = 3.0
    half_life: int = 20_000

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise InvalidInputError.of("rate", self.rate, "more than 0, up to 1")
        if not 0.0 < self.clip < 10.0:
            raise InvalidInputError.of("clip", self.clip, "more than 0, below 10")
        for name in ("absurd_ratio", "most", "most_per_neighbour"):
            if not getattr(self, name) >= 1.0:
                raise InvalidInputError.of(name, getattr(self, name), "1 or more")
        if self.half_life < 1:
            raise InvalidInputError.of("half_life", self.half_life, "1 or more")


_FADE_EVERY = 256  # observations between two fadings; each touches every row


class Residuals:
    """Correcting factors for n rows, each of one of several groups (device classes).

    The log of seen over predicted is modelled as ``row + neighbour[group] * load``: a placement's
    own deviation, and what each busy neighbour adds on its device class. Both follow the error of
    that sum by a clipped, exponentially weighted step (normalised least mean squares when load is
    not 0).

    Args:
        groups: for each row the index of its group.
        settings: see ResidualSettings.
    """

    def __init__(self, groups: Sequence[int], settings: ResidualSettings) -> None:
        self._settings = settings
        self._groups = list(groups)
        self._log = [0.0] * len(self._groups)
        self._count = [0] * len(self._groups)
        self._neighbour = [0.0] * (max(self._groups, default=-1) + 1)
        self._group_of_row = np.asarray(self._groups, dtype=np.intp)
        self._factors = np.ones(len(self._groups))
        self._since_fading = 0
        self._most_log = math.log(settings.most)
        self._most_neighbour_log = math.log(settings.most_per_neighbour)
        self._absurd_log = math.log(settings.absurd_ratio)
        self.ignored_count = 0
        self.version = 0

    @property
    def factors(self) -> FloatArray:
        """Factor of each row on an idle host, shape (n,). Changes in place: copy to keep."""
        return self._factors

    def neighbour_factors(self, busy_neighbours: float) -> FloatArray | None:
        """Factor of each row for so many busy neighbours, shape (n,); None if all are 1."""
        if not busy_neighbours > 0.0 or not any(self._neighbour):
            return None
        by_group = [math.exp(log * min(busy_neighbours, 64.0)) for log in self._neighbour]
        return np.take(np.asarray(by_group), self._group_of_row)

    def observe(
        self, row: int, predicted_s: float, busy_neighbours: float, latency_s: float
    ) -> bool:
        """Learn from one outcome; False if it was ignored.

        Args:
            row: whose.
            predicted_s: the measured median at that batch, without any correction.
            busy_neighbours: 0 or more.
            latency_s: what it took.
        """
        if not (0.0 < latency_s < math.inf and 0.0 < predicted_s < math.inf):
            self.ignored_count += 1
            return False
        ratio_log = math.log(latency_s / predicted_s)
        if abs(ratio_log) > self._absurd_log:
            self.ignored_count += 1
            return False
        load = min(busy_neighbours, 64.0) if busy_neighbours > 0.0 else 0.0
        group = self._groups[row]
        settings = self._settings
        error = ratio_log - self._log[row] - self._neighbour[group] * load
        error = max(-settings.clip, min(settings.clip, error))
        count = self._count[row] = self._count[row] + 1
        step = max(settings.rate, 1.0 / count) * error / (1.0 + load * load)
        bound = self._most_log
        own = self._log[row] = max(-bound, min(bound, self._log[row] + step))
        self._factors[row] = math.exp(own)
        if load > 0.0:
            learned = self._neighbour[group] + settings.rate * error * load / (1.0 + load * load)
            self._neighbour[group] = max(0.0, min(self._most_neighbour_log, learned))
        self.version += 1
        self._since_fading += 1
        if self._since_fading >= _FADE_EVERY:
            self._fade()
        return True

    def _fade(self) -> None:
        keep = 0.5 ** (self._since_fading / self._settings.half_life)
        self._since_fading = 0
        faded = np.asarray(self._log) * keep
        self._log = faded.tolist()
        np.exp(faded, out=self._factors)
        self._neighbour = [log * keep for log in self._neighbour]
