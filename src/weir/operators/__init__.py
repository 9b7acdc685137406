"""Batches in, batches out: everything that a vertex of the plan can do.

base, source and sink are the contracts. Operators keep state through state/, and never touch a clock, a thread, a
socket or a file: runtime/task calls them, and sources and sinks do their IO in connectors/.
"""
