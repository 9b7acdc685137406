"""Spark: the session, the Java process, one barrier stage for each attempt, and the feed of DataFrames."""
