"""Joins of two keyed streams: by interval, by window, as of a time."""
