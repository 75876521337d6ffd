"""Scaling policies: one file each, and what they are made of.

Of ``demand_value``, all that begins with its name; of ``infaas``, ``model_variants``; of
``proteus``, ``proteus_program``; of ``proteus`` and ``infadapter``, ``demand_mix``, ``replanning``
and ``worker_options``.
"""
