"""Matrix products of quantized activations and weights."""
