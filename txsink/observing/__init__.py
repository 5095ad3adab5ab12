"""What operators look at: metrics and reports."""
