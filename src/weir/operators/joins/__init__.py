"""Joins of two keyed streams: by interval, by window, as of a time.

Comes in: batches of either side, watermarks. Goes out: joined rows. Rows go when the watermark says that nothing can
join them any more. Never touches a clock or a file.
"""
