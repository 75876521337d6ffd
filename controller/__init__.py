"""The control plane: sans-I/O cores and the drivers that carry out what they decide."""

if not __name__.startswith("modelless."):
    raise ImportError(
        f"'{__name__}' is a folder of modelless: import 'modelless.{__name__}' instead"
    )
