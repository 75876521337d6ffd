"""Eviction policies: one file each, and the modules that they share.

``query_rates`` belongs to ``miss_cost``; several policies use ``instance_figures``.
"""
