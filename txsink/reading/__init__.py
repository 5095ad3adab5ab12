"""What a program that reads holds: tables, versions, history, audit. Never writes."""
