"""Benchmarks for developers: single operators, products, convolutions, chains and seeded networks."""
