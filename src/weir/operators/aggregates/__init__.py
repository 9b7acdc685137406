"""Keyed running aggregates in two halves around an exchange, and the aggregates that users name."""
