"""Where ONNX Runtime's own nodes are the better choice: its fusions, and tensors that are too small."""
