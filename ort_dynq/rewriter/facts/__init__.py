"""What the rules need to know of a model. Nothing in this package changes the model."""
