"""One store for rows that wait in built-in operators: immutable sorted segments by time, merged like an LSM tree.

Comes in: batches with their times. Goes out: segments that are searched, pruned by time as a whole, and snapshots of
which only new segments are written. In memory, or in local files of which a bounded part is resident. Never touches a
row as a Python object, and knows no operator.
"""
