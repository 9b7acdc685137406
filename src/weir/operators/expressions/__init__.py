"""Polars expressions over batches: select, with_columns, filter.

Comes in: batches and expressions. Goes out: batches; integers that would wrap are an error. Never keeps state.
"""
