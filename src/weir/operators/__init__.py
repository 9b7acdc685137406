"""Batches in, batches out: everything that a vertex of the plan can do.

Comes in: batches, watermarks, barriers as calls. Goes out: batches, frozen state. base, source and sink are the
contracts. Operators keep state through state/, and never touch a clock, a thread, a socket or a file: runtime/task
calls them, and sources and sinks do their IO in connectors/.
"""
