"""``python -m modelless.controller.cli``: how ``modelless up --detach`` starts itself again.

Python puts the current folder on the import path here, unless it is told ``-P``; it comes off.
"""

from __future__ import annotations

import sys

from modelless.controller.cli import main

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    main()
