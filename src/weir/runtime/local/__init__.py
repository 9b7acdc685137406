"""A whole job in one thread of this process: the production driver and workers over ports in memory.

Comes in: a plan, and where it shall crash. Goes out: rows. Never touches Spark or a socket.
"""
