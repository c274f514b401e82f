"""Registration of the operators in sessions: the native library, or onnxruntime-extensions."""
