"""Functions of whole batches (Arrow, Polars, pandas), with or without state by key.

Comes in: batches. Goes out: what the user's function returns, held against the declared schema. Never looks at single
rows.
"""
