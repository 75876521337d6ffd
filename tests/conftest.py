"""What all tests share: nothing that they start reports to anybody."""

import modelless  # noqa: F401  (tests that import ONNX Runtime themselves do so after this)
