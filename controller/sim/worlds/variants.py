"""The part of a world that says which variants a task has and what they were measured to take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from modelless.controller.sim.worlds.section import Section

Positive = Annotated[float, Field(gt=0)]
Percent = Annotated[float, Field(ge=0, le=100)]
Range = tuple[Positive, Positive]


class TailSettings(Section):
    """Ratios of the upper quantiles to the median, for profiles without them."""

    p90_ratio: float = Field(1.1, ge=1, le=100, description="p90 over p50")
    p99_ratio: float = Field(1.3, ge=1, le=100, description="p99 over p50")

    @model_validator(mode="after")
    def _in_order(self) -> TailSettings:
        if self.p99_ratio < self.p90_ratio:
            raise ValueError("p99_ratio must be at least p90_ratio")
        return self


class LoadTimeSettings(Section):
    """Load time: a fixed part, and a part by size. Tables of others lack it."""

    fixed_s: float = Field(0.2, ge=0, le=3600, description="seconds, whatever the size")
    mib_per_s: float = Field(500.0, gt=0, description="MiB read and warmed a second")


class PointSettings(Section):
    """One measured point of a variant written out in the world."""

    device: str = Field(description="device class")
    batch: int = Field(1, ge=1, le=1024, description="items in the batch")
    size: int = Field(
        0, ge=0, le=10**9, description="numbers in an item, of all points or of none; see sizes"
    )
    p50_ms: float = Field(gt=0, description="median latency of the whole batch")
    p90_ms: float | None = Field(None, gt=0, description="default: p50 x tail.p90_ratio")
    p99_ms: float | None = Field(None, gt=0, description="default: p50 x tail.p99_ratio")


class WrittenVariant(Section):
    """A variant written out in the world."""

    model: str = Field(description="its model")
    name: str = Field("v", description="its name")
    accuracy: float = Field(ge=0, le=100, description="per cent")
    memory_mib: float = Field(100.0, ge=0, description="MiB when loaded")
    load_s: float = Field(0.5, ge=0, le=3600, description="seconds from disk to warm")
    points: tuple[PointSettings, ...] = Field(min_length=1, description="what was measured")
    true_ratios: dict[str, Positive] = Field(
        default_factory=dict,
        description="by device class: what a batch really takes over what was measured; default: 1",
    )


class WrittenVariants(Section):
    """Variants written out in the world."""

    kind: Literal["written"]
    variants: tuple[WrittenVariant, ...] = Field(min_length=1, description="one by one")
    tail: TailSettings = Field(default_factory=TailSettings, description="missing quantiles")
    measured: bool = Field(
        False, description="accuracies were measured: 1 and less are per cent, not shares of 1"
    )


class LadderVariants(Section):
    """Made-up variants, from small, quick and coarse to large, slow and accurate.

    Latency, memory and load time rise geometrically from the first figure to the second, accuracy
    with the root of the rank, as model families do: the last points cost most.
    """

    kind: Literal["ladder"]
    count: int = Field(5, ge=1, le=2000, description="variants")
    latency_ms: Range = Field((4.0, 40.0), description="median of one item at speed 1")
    accuracy: tuple[float, float] = Field((60.0, 80.0), description="per cent")
    memory_mib: Range = Field((20.0, 200.0), description="MiB when loaded")
    load_s: Range = Field((0.3, 2.0), description="seconds from disk to warm")
    further_item: float = Field(
        0.5, ge=0, le=1, description="what each further item of a batch adds, of the first's"
    )
    batches: tuple[int, ...] = Field((1, 2, 4, 8, 16), min_length=1, description="measured at")
    speeds: dict[str, Positive] = Field(
        default_factory=dict,
        description="by device class; others cannot run it. Default: 1 on every class",
    )
    tail: TailSettings = Field(default_factory=TailSettings, description="spread of latencies")

    @model_validator(mode="after")
    def _accuracy_is_percent(self) -> LadderVariants:
        if not all(0.0 <= value <= 100.0 for value in self.accuracy):
            raise ValueError("accuracy must be of 0 to 100 (per cent)")
        if any(batch < 1 for batch in self.batches):
            raise ValueError("batches must be 1 or more")
        return self


class TableVariants(Section):
    """Variants from a table in the profiles' schema, which ``modelless profile --csv`` writes.

    A variant is what shares model, precision, engine and resolution; its rows tell of the devices
    whose ``profiled_as`` is the table's ``device``.
    """

    kind: Literal["table"]
    path: str | tuple[str, ...] = Field(description="CSV files; relative to the world file")
    task: str | None = Field(None, description="the table's task; default: all rows")
    models: tuple[str, ...] = Field(("*",), description="patterns of the table's model")
    engines: tuple[str, ...] = Field(("*",), description="patterns of the table's engine")
    precisions: tuple[str, ...] = Field(("*",), description="patterns of the table's precision")
    most: int | None = Field(
        None, ge=1, description="models to keep, spread over their accuracies; default: all"
    )
    accuracy: Percent | Literal["skip"] | None = Field(
        None,
        description="per cent, where the table has none, or skip for doing without such variants; "
        "default: an error",
    )
    memory_mib: float = Field(
        200.0, ge=0, description="where the table tells neither memory nor parameters"
    )
    bytes_per_parameter: float = Field(
        6.0, ge=0, description="memory where the table tells parameters only"
    )
    launch_ms: float | None = Field(
        None,
        ge=0,
        description="reckon batches below the measured ones as this plus a share by items; "
        "default: a variant measured only above limits.max_batch is an error",
    )
    load: LoadTimeSettings = Field(default_factory=LoadTimeSettings, description="load times")
    tail: TailSettings = Field(default_factory=TailSettings, description="missing quantiles")


class StoreVariants(Section):
    """The task of that name in the store, with what was profiled on any machine."""

    kind: Literal["store"]
    device_name: str | None = Field(None, description="only profiles of this processor or card")


VariantsSettings = Annotated[
    WrittenVariants | LadderVariants | TableVariants | StoreVariants, Field(discriminator="kind")
]


class TaskSettings(Section):
    """A task, or several alike."""

    name: str = Field(description="its name; with copies, its copies are name-0, name-1, ...")
    copies: int = Field(1, ge=1, le=10_000, description="tasks alike")
    variants: VariantsSettings = Field(description="its variants and their profiles")

    @property
    def names(self) -> tuple[str, ...]:
        if self.copies == 1:
            return (self.name,)
        width = len(str(self.copies - 1))
        return tuple(f"{self.name}-{copy:0{width}d}" for copy in range(self.copies))
