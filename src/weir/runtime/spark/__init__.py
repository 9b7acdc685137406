"""Spark: the session, the Java process, one barrier stage for each attempt, and the feed of DataFrames.

Comes in: launches and kills from the driver. Goes out: tasks that run task/, and what became of their stage. Never
restarts anything by itself.
"""
