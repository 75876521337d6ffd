"""The costs of placements: device facts, measurements and the cost model."""

if not __name__.startswith("modelless."):
    raise ImportError(
        f"'{__name__}' is a folder of modelless: import 'modelless.{__name__}' instead"
    )
