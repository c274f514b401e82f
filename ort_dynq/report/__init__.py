"""A self-contained HTML report on one model."""
