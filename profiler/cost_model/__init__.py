"""The cost model: what a batch of a placement takes.

The way of a prediction: ``model_inputs`` reads the measurements of this host, has ``unmeasured``
predict the gaps, and makes a ``ServingCostModel`` of both. That one answers every decision, and
``online`` corrects it by what is observed. ``evaluation`` compares the predictor of ``unmeasured``
with baselines; nothing that serves asks it.
"""
