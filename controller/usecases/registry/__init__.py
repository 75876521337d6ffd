"""What is registered: tasks, models, variants and their versions, added, made, judged, moved."""
