"""Rows become durable files that no reader sees. Knows no log."""
