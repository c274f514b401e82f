"""Codes: which values are codes times a scale, and what a product takes of them."""
