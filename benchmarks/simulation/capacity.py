"""How hard the worlds are: what each asks for at a load of 1, beside what its devices could serve.

    python benchmarks/simulation/capacity.py [WORLD.yaml ...]

Capacity is the largest rate of the same mix that could be served within its limits, with full
batches and without a pause (``controller/sim/bound/capacity.py``). The worlds here ask for about
that in their busiest five seconds, but for ``bursty``, whose bursts are shorter.
"""

from __future__ import annotations

import sys
from pathlib import Path

from modelless.controller.sim.bound.capacity import demand_of
from modelless.controller.sim.worlds.world import load_world

WORLDS = Path(__file__).parents[1] / "worlds"


def main(paths: list[str]) -> None:
    print(f"{'world':<18}{'capacity/s':>12}{'mean/s':>10}{'busiest 5 s':>13}{'load':>7}")
    for path in [Path(name) for name in paths] or sorted(WORLDS.glob("*.yaml")):
        file = load_world(path)
        demand = demand_of(file)
        print(
            f"{file.world.name:<18}{demand.capacity_per_s:>12.1f}{demand.mean_per_s:>10.1f}"
            f"{demand.busiest_per_s:>13.1f}{demand.load:>7.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
