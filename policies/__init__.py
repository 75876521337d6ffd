"""Who decides: pure policies for selection, batching, scaling, placement and eviction."""

if not __name__.startswith("modelless."):
    raise ImportError(
        f"'{__name__}' is a folder of modelless: import 'modelless.{__name__}' instead"
    )
