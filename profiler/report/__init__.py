"""The report of profiles: what was measured and predicted, as data, pictures and a page.

``profiles``, ``tradeoffs`` and ``prediction_errors`` compute the values, and ``document`` puts them
together; ``charts`` draws them; ``page`` is the page.
"""
