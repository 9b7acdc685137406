"""Polars expressions over batches: select, with_columns, filter; integers that would wrap are an error."""
