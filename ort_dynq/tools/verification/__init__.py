"""Verifies a model against another one: every output bit for bit, and integer products against float64."""
