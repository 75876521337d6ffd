"""Pictures of what was profiled and predicted, and the pieces that every report's page is made of.

``profiles``, ``tradeoffs``, ``batch_curves`` and ``prediction_errors`` reckon what is shown, as
values, and ``document`` puts them together; ``tradeoff_charts`` and ``latency_charts`` draw them;
``page`` shows them. ``page_parts``, ``page_style`` and ``plotting`` are shared with the
controller's reports.
"""
