"""Functions of single rows, with or without a key, state and timers: map, flat_map, process, reduce, map_async.

Comes in: batches. Goes out: rows of the declared schema, or an error with the user's own lines and the row. The
functions see named tuples and handles; they never see batches, and nothing built in runs through here.
"""
