"""Where a key lives: Spark's xxhash64 over columns, key groups, and indexes from keys to slots.

Comes in: key columns. Goes out: hashes, key groups, slots, batches split by owner. Whole columns at a time,
never single rows.
"""
