"""Use cases: each command as a function with typed arguments that returns plain data.

Nothing here prints. A long use case reports its progress to a callback. ``controller/cli`` prints
what these functions return, and ``import modelless`` offers the main ones to Python.
"""
