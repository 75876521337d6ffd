"""The part of a world that describes its queries: tasks, arrivals, limits."""

from __future__ import annotations

from pydantic import Field, model_validator

from modelless.controller.sim.worlds.arrivals import ArrivalsSettings, SloSettings
from modelless.controller.sim.worlds.section import Section


class PopularitySettings(Section):
    """How arrivals are shared out over several tasks: Zipf by rank, and ranks that change."""

    zipf: float = Field(1.0, ge=0, le=5, description="share of rank r ~ 1 / r^zipf; 0: all alike")
    drift_every_s: float | None = Field(
        None, ge=1e-3, description="time between changes, seconds; default: never"
    )
    drift_swaps: int = Field(
        1, ge=1, le=100_000, description="random pairs of tasks that swap ranks at each change"
    )


class SizesSettings(Section):
    """Items of different sizes: log-uniform from least to most, rounded to multiples of a step."""

    least: int = Field(ge=1, le=10**9, description="numbers in the smallest item")
    most: int = Field(ge=1, le=10**9, description="numbers in the largest item")
    step: int = Field(
        1, ge=1, le=10**9, description="sizes are multiples of it; only equal ones share a batch"
    )
    padded: bool = Field(
        False,
        description="pad the multiple to the next of four in each doubling, as tasks with "
        "`padding` do",
    )

    @model_validator(mode="after")
    def _in_order(self) -> SizesSettings:
        if not self.step <= self.least <= self.most:
            raise ValueError("step, least and most must be in ascending order")
        return self


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
    sizes: SizesSettings | None = Field(
        None, description="of the items; default: as the variants were profiled"
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
