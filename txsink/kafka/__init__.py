"""Relays between Kafka and tables."""
