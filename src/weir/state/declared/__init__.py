"""The states that users declare (value, list, map, reducing, aggregating), their time-to-live, and the handles
through which functions reach them.

Comes in: declarations, and cells that backends fill. Goes out: handles, and the tables that all backends write. Never
knows which backend it is.
"""
