"""Training runs and comparisons of them."""
