"""What runs inside one Spark task: the worker loop, its subtasks, chains, gates and sink ends, and their snapshots.

Comes in: elements from channels and orders from the driver. Goes out: elements, snapshots, acknowledgements. The same
code runs on real ports and on simulated ones; it never touches the world but through them.
"""
