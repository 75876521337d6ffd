"""The report of profiles: what was measured and predicted, as data, pictures and a page.

``profiles``, ``tradeoffs``, ``batch_curves`` and ``prediction_errors`` compute the values, and
``document`` puts them together; ``charts`` and ``latency_charts`` draw them; ``page`` is
the page.
"""
