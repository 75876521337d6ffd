"""A Ray cluster of three nodes on this machine, until standard input ends.

One head, and two nodes that stand for sites and kinds of hardware by their labels. Says the
cluster's address; then obeys lines of standard input, and says ``done`` after each:

- ``kill SITE``: the site's node dies as by a power cut, its daemons and workers all at once;
- ``join SITE``: a new node stands there.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # every daemon on loopback
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "120",  # a busy machine takes longer than the usual 30
}
MEMORY = {"object_store_memory": 80 * 2**20}


def main() -> None:
    """Bring it up, say its address, and take it down when nobody needs it any more."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "labels": {"site": "head"}, **MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = {site: join(cluster, site) for site in ("edge", "core")}
        cluster.wait_for_nodes()
        say(cluster.address)
        for line in sys.stdin:
            verb, site = line.split()
            if verb == "kill":
                kill(cluster, nodes[site])
            else:
                nodes[site] = join(cluster, site)
                cluster.wait_for_nodes()
            say("done")
    finally:
        cluster.shutdown()


def say(line: str) -> None:
    """Say one line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def join(cluster: Cluster, site: str) -> Any:
    """Start the site's node."""
    return cluster.add_node(wait=False, num_cpus=1, labels={"site": site}, **MEMORY)


def kill(cluster: Cluster, node: Any) -> None:
    """Kill all of the node's processes; nobody has time to say goodbye."""
    daemons = [one.process.pid for many in node.all_processes.values() for one in many]
    # Workers first: a proxy that finds its daemon gone would close its connections one by one.
    workers = [each for daemon in daemons for each in offspring_of(daemon)]
    for process_id in workers + daemons:
        with suppress(ProcessLookupError):  # gone with its parent
            os.kill(process_id, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)


def offspring_of(process_id: int) -> list[int]:
    """The process's children and theirs, by the kernel's own lists."""
    tasks = Path(f"/proc/{process_id}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [each for child in children for each in (child, *offspring_of(child))]


if __name__ == "__main__":
    main()
