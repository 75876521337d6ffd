"""Scaling policies: one file each, and the modules that they share.

``demand_value`` uses the modules of its folder; ``infaas`` uses ``model_variants``; ``proteus``
uses ``proteus_program``; ``proteus`` and ``infadapter`` use ``demand_mix``, ``replanning`` and
``worker_options``; ``elastic`` uses ``elastic_program`` and ``elastic_problem``; both programs use
``mixed_integer``.
"""
