"""The `Storage` port over local files, object stores and HDFS, each with an atomic create; and a layer that tries
again.

Comes in: paths and bytes. Goes out: the same, or one of the port's errors. Never knows what a file is for.
"""
