"""Weights of products: as a grid of integers, and as the model packs them."""
