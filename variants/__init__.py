"""Tasks, models and variants: the vocabulary, the registry, the runtimes and the zoo."""

if not __name__.startswith("modelless."):
    raise ImportError(
        f"'{__name__}' is a folder of modelless: import 'modelless.{__name__}' instead"
    )
