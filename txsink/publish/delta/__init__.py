"""One commit of Delta's log makes staged files visible."""
