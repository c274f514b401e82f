"""A self-contained HTML page on a model and the model that was made from it."""
