"""The states that users declare (value, list, map, reducing, aggregating), their time-to-live, and the handles
through which functions reach them. Backends fill the handles; the tables that all of them write are here, too.
"""
