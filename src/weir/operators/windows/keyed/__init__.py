"""Rows that wait by key alone: for count windows, and for global windows that purge.

Comes in: batches of rows with keys. Goes out: how many rows of each key have come, the rows of keys whose windows come
out, and frozen states. New rows lie as they came behind an index by key; only a snapshot, or want of memory, puts what
waits into segments. Never looks at a row of a key that has no window to come out.
"""
