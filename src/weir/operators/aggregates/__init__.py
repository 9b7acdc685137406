"""Keyed running aggregates in two halves around an exchange, and the aggregates that users name.

Comes in: batches and the aggregates wanted. Goes out: partial rows of the first half, results of the second. State
lies in state/columns; neither half ever touches a Python row.
"""
