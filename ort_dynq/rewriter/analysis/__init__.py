"""What is known of a model before it runs: types, shapes, constants, bounds. Nothing here changes the model."""
