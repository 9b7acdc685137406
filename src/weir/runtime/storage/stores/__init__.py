"""The `Storage` port over local files, object stores and HDFS, each with an atomic create; and a layer that tries
again.
"""
