"""A table's changes, delivered in order, each once."""
