"""Functions of whole batches (Arrow, Polars, pandas), with or without state by key."""
