"""Delta's protocol, whole. Knows nothing of our log."""
