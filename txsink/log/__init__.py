"""An ordered record of entries; one law says what may follow."""
