"""Scaling policies: one file each, and the modules that they share.

``expected_value`` uses the modules of its folder; ``infaas`` uses ``model_variants``; ``proteus``
uses ``proteus_program``; ``proteus`` and ``infadapter`` use ``demand_mix``, ``replanning`` and
``worker_options``; all programs use ``mixed_integer``.
"""
