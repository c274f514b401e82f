"""What the rules ask of a model."""
