"""``modelless demo``: the whole way on real photos, and a report of it."""
