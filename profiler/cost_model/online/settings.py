"""Settings of the corrections and of the detection of changes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ShiftSettings:
    """Settings of a two-sided CUSUM (Page, Biometrika 1954) on log residuals in standard
    deviations.

    With known mean and deviation and normal, independent residuals, Siegmund's approximation
    (Sequential Analysis, 1985; threshold + 1.166) gives one false alarm in 10^13 outcomes. Here
    mean and deviation come from ``warm_up`` outcomes, and real residuals are neither normal nor
    independent. In simulations there is no false alarm in a million normal, exponential or
    Student-t(3) residuals, and there are 50 in a million where neighbouring residuals are
    correlated by 0.5. A shift of two deviations is detected after 17 outcomes at the median, one of
    three after 10.

    Attributes:
        settle: number of a row's first outcomes that are skipped, while the contention is learned.
        warm_up: number of outcomes that give the level to compare with; also after each alarm.
        slack: deviations per outcome that count as no change.
        threshold: sum of deviations beyond the slack that is an alarm.
        clip: most deviations that one outcome counts, so that no single outcome is an alarm.
        least_deviation: least standard deviation of log latency to compare with; smaller changes
            are not worth a new measurement.
    """

    settle: int = 50
    warm_up: int = 50
    slack: float = 1.0
    threshold: float = 15.0
    clip: float = 3.0
    least_deviation: float = 0.05


@dataclass(frozen=True, slots=True)
class ResidualSettings:
    """Settings of how residuals learn.

    Attributes:
        rate: weight of a new log ratio; the first few weigh more (1/n).
        clip: most that a log ratio may deviate; more counts as this.
        absurd_ratio: outcomes that take so many times longer or shorter than the measured median
            are ignored: a stopped process, a clock that jumped, a wrong unit.
        most: bound of a placement's factor, which stays within 1/most to most.
        most_per_neighbour: upper bound of the factor for one busy neighbour, 1 or more.
        own_weight: outcomes of a placement that weigh as much as its class.
        class_weight: placements that weigh as much, for their class, as the profile itself.
        half_life_s: seconds after which a placement without outcomes is half as far from its
            profile; see ``Recency``.
        curve_half_life_s: the same for the contention curve of a device class.
        shift: settings of the detection of changes.
        learns: if False, every prediction stays as profiled and outcomes are only counted, so that
            the value of learning can be measured.
    """

    rate: float = 0.1
    clip: float = 0.5
    absurd_ratio: float = 50.0
    most: float = 10.0
    most_per_neighbour: float = 3.0
    own_weight: float = 2.0
    class_weight: float = 2.0
    half_life_s: float = 4.0
    curve_half_life_s: float = 3600.0
    shift: ShiftSettings = field(default_factory=ShiftSettings)
    learns: bool = True
