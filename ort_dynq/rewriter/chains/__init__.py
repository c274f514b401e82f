"""Quantization chains: QuantizeLinear and DequantizeLinear, and chains of primitive operators."""
