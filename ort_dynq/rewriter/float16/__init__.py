"""Chains and operands of float16 models."""
