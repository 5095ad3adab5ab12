"""The next numbered record is put exactly once."""
