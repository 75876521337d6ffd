"""Reading, inspecting and changing ONNX graphs."""
