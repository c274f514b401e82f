"""Benchmarks against stock ONNX Runtime at its default optimization level."""
