"""What may go, and the way out of damage."""
