"""The command `txsink`."""
