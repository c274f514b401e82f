"""How sessions get the operators."""
