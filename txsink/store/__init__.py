"""Bytes appear whole, once, durably."""
