"""In place of Ray's two agents: says where neither listens, and ends with the raylet.

A raylet waits at its start for the ports of a dashboard agent, which reports and exports, and of an
agent that prepares runtime environments, and it ends when one of them does. In a Ray of modelless's
own nobody uses what they offer. They take 120 MiB, and seconds to import. Standard library only.
"""

import os
import signal
import sys
from pathlib import Path

PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
NOBODY = "-1"


def main() -> None:
    """Write the ports as Ray's own agents do, in this node's files of the session's folder."""
    words = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:])
    for name in PORTS:
        path = Path(words["session-dir"], f"{name}_{words['node-id']}")
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.write_text(NOBODY)
        new.replace(path)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.read()  # ends with the raylet


if __name__ == "__main__":
    main()
