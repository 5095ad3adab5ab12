"""Staged files become visible, and go again."""
