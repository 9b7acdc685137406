"""Everything durable: storage by location, the checkpoint directory with its claims, savepoints, retirement, local
copies, and what killed processes leave behind.

Comes in: bytes and names. Goes out: the same bytes, or a named error. Never talks to tasks or to Spark.
"""
