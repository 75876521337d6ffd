"""The part of a world that says who asks for what, when, and within which limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from modelless.controller.sim.worlds.section import Section

Rate = Annotated[float, Field(ge=0, le=1e7)]


class PoissonArrivals(Section):
    """Independent clients: exponential gaps."""

    kind: Literal["poisson"]
    rate_per_s: Rate = Field(description="mean arrivals a second")


class GammaArrivals(Section):
    """Gamma-distributed gaps: more regular (cv below 1) or burstier (above) than Poisson."""

    kind: Literal["gamma"]
    rate_per_s: Rate = Field(description="mean arrivals a second")
    cv: float = Field(gt=0, le=20, description="standard deviation of the gaps over their mean")


class BurstArrivals(Section):
    """A Poisson process whose rate jumps between two levels, each held for a random time (MMPP)."""

    kind: Literal["bursts"]
    low_per_s: Rate = Field(description="rate between bursts")
    high_per_s: Rate = Field(description="rate in bursts")
    mean_low_s: float = Field(ge=1e-3, description="mean time between bursts, seconds")
    mean_high_s: float = Field(ge=1e-3, description="mean length of a burst, seconds")


class DiurnalArrivals(Section):
    """A Poisson process whose rate swings as a sine: the day, shortened at will."""

    kind: Literal["diurnal"]
    mean_per_s: Rate = Field(description="mean rate")
    swing: float = Field(0.8, ge=0, le=1, description="the peak is mean x (1 + swing)")
    period_s: float = Field(gt=0, description="a day, seconds")
    peak_at_s: float = Field(0.0, description="when a peak is")


class FlashCrowdArrivals(Section):
    """A steady Poisson process, and once a crowd that comes fast and leaves slowly."""

    kind: Literal["flash-crowd"]
    base_per_s: Rate = Field(description="rate before and after")
    peak_per_s: Rate = Field(description="rate at the height")
    at_s: float = Field(ge=0, description="when it begins")
    rise_s: float = Field(5.0, gt=0, description="from base to peak, linear")
    hold_s: float = Field(10.0, ge=0, description="at the peak")
    fall_s: float = Field(20.0, gt=0, description="time constant of the decay")


class TraceArrivals(Section):
    """Recorded arrivals: a CSV file with ``arrival_s`` and perhaps ``task``, ascending.

    A row may name its limits, too: ``latency_ms``, ``min_accuracy``, ``max_cost_usd``, ``tenant``,
    ``priority``, ``items`` and ``when_late``, blank for none. Where the file has any of these
    columns, its rows take the place of the mix of clients. ``task`` may be narrower:
    ``task/model[/variant]``.
    """

    kind: Literal["trace"]
    path: str = Field(description="CSV file; relative to the world file")


class RatesArrivals(Section):
    """Recorded rates: a CSV file with ``start_s, stream, rate_per_s``, ascending by start.

    Between two starts each stream is a Poisson process; the i-th stream in order of appearance
    asks for the i-th task, round and round.
    """

    kind: Literal["rates"]
    path: str = Field(description="CSV file; relative to the world file")
    window_s: float = Field(600.0, gt=0, description="how long a rate holds if none follows")


ArrivalsSettings = Annotated[
    PoissonArrivals
    | GammaArrivals
    | BurstArrivals
    | DiurnalArrivals
    | FlashCrowdArrivals
    | TraceArrivals
    | RatesArrivals,
    Field(discriminator="kind"),
]


class PopularitySettings(Section):
    """How arrivals are shared out over several tasks: Zipf by rank, and ranks that change."""

    zipf: float = Field(1.0, ge=0, le=5, description="share of rank r ~ 1 / r^zipf; 0: all alike")
    drift_every_s: float | None = Field(
        None, ge=1e-3, description="time between changes, seconds; default: never"
    )
    drift_swaps: int = Field(
        1, ge=1, le=100_000, description="random pairs of tasks that swap ranks at each change"
    )


class SloSettings(Section):
    """One kind of client: its limits, and how common it is."""

    weight: float = Field(1.0, gt=0, description="share among the kinds")
    latency_ms: float | None = Field(
        None, gt=0, le=3.6e6, description="deadline from arrival; default: limits'"
    )
    min_accuracy: float = Field(0.0, ge=0, le=100, description="least accuracy, per cent")
    max_cost_usd: float | None = Field(None, gt=0, description="highest price; default: none")
    tenant: str = Field("", description="the client's name")
    priority: int = Field(0, ge=0, le=9, description="more is more urgent")
    items: int = Field(1, ge=1, le=1024, description="items a query")
    when_late: Literal["refuse", "serve"] = Field(
        "refuse", description="what happens to queries that cannot be in time"
    )


class QueriesSettings(Section):
    """A stream of queries."""

    tasks: tuple[str, ...] = Field(min_length=1, description="names or patterns of tasks")
    arrivals: ArrivalsSettings = Field(description="when")
    popularity: PopularitySettings = Field(
        default_factory=PopularitySettings, description="which of several tasks"
    )
    slos: tuple[SloSettings, ...] = Field(
        (SloSettings(),), min_length=1, description="the mix of clients"
    )
    site: str | None = Field(None, description="where they are; default: at the gateway")
    rate_scale: float = Field(1.0, gt=0, le=1e6, description="multiplies the rate")
    time_scale: float = Field(
        1.0, gt=0, le=1e6, description="time passes so much faster: 60 makes an hour a minute"
    )
    start_s: float = Field(0.0, ge=0, description="when the stream begins")

    @model_validator(mode="after")
    def _tasks_named_once(self) -> QueriesSettings:
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError("tasks: each once")
        return self
