"""Deterministic fault simulation: a whole cluster in one process, on a virtual clock."""
