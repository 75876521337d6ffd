"""Eviction policies: one file each, and what they are made of.

Of ``miss_cost``, ``popularity``; of several, ``worth``.
"""
