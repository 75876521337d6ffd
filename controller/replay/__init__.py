"""Recordings of a live run: what went into the cores and what came out; replay, and worlds."""
