"""A Ray cluster of three nodes on this machine, until standard input ends.

One head, and two nodes that stand for sites and kinds of hardware by their labels.
"""

from __future__ import annotations

import os
import sys

os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # every daemon on loopback
    "RAY_USAGE_STATS_ENABLED": "0",
}


def main() -> None:
    """Bring it up, say its address, and take it down when nobody needs it any more."""
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 80 * 2**20}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, **memory},
    )
    try:
        for site in ("edge", "core"):
            cluster.add_node(wait=False, num_cpus=1, labels={"site": site}, **memory)
        cluster.wait_for_nodes()
        sys.stdout.write(f"{cluster.address}\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
