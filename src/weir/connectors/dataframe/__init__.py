"""A bounded Spark DataFrame as a source.

Comes in: a DataFrame. Goes out: its rows, in an order that is the same after every restart. Spark work of its own is
done on the driver, never in the job's tasks.
"""
