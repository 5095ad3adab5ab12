"""Two-phase commit for an engine that takes checkpoints."""
