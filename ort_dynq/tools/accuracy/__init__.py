"""How far a quantized model is from its float model."""
