"""Convolutions of quantized activations and weights."""
