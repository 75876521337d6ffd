"""The report of a comparison: its figures as text, its charts, and the HTML page."""
